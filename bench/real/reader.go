// Reads pages of a file by the page numbers on standard input, as reader.c does. Go programs make their own system calls: no preload library reaches them.
//
//	terrace-bench worker keys --file FILE --pattern zipf:0.8 | reader-go FILE THREADS SECONDS
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const page = 4096

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: reader-go FILE THREADS SECONDS < KEYS")
		os.Exit(2)
	}
	threads, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fail(err)
	}
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	if err != nil {
		fail(err)
	}
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err)
	}
	file, err := os.Open(os.Args[1])
	if err != nil {
		fail(err)
	}
	keys := len(raw) / 4
	if keys == 0 {
		fail(fmt.Errorf("no keys"))
	}
	start := time.Now()
	until := start.Add(time.Duration(seconds * float64(time.Second)))
	var reads, wrong atomic.Uint64
	var all sync.WaitGroup
	for t := 0; t < threads; t++ {
		all.Add(1)
		go func(at int) {
			defer all.Done()
			buf := make([]byte, page)
			var mine, bad uint64
			for mine%64 != 0 || time.Now().Before(until) {
				key := uint64(binary.LittleEndian.Uint32(raw[at*4:]))
				if _, err := file.ReadAt(buf, int64(key)*page); err != nil {
					fail(err)
				}
				if binary.LittleEndian.Uint64(buf) != key {
					bad++
				}
				mine++
				at = (at + 1) % keys
			}
			reads.Add(mine)
			wrong.Add(bad)
		}(keys / threads * t)
	}
	all.Wait()
	took := time.Since(start).Seconds()
	if wrong.Load() != 0 {
		fail(fmt.Errorf("WRONG DATA in %d reads", wrong.Load()))
	}
	fmt.Printf("{\"reads_per_s\": %.1f, \"bytes\": %d}\n", float64(reads.Load())/took, reads.Load()*page)
}
