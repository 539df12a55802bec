package terrace.ycsb;

import java.util.Properties;
import java.util.Vector;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksDBException;
import org.rocksdb.RocksIterator;

/**
 * RocksDB in the program: half of the memory is its block cache, the other half is the kernel's page cache and its tables; filters of ten bits a key. The
 * rest is as RocksDB has it.
 */
public final class RocksDb extends ValueDb {
    private static RocksDB shared;

    /** YCSB calls this before its clock starts; what it opens is closed after the clock has stopped. */
    @Override
    public void setProperties(Properties properties) {
        super.setProperties(properties);
        synchronized (RocksDb.class) {
            if (shared == null) {
                shared = open(properties);
                Runtime.getRuntime().addShutdownHook(new Thread(shared::close));
            }
        }
    }

    private static RocksDB open(Properties properties) {
        RocksDB.loadLibrary();
        BlockBasedTableConfig table = new BlockBasedTableConfig()
            .setBlockCache(new LRUCache(Long.parseLong(properties.getProperty("memory")) / 2))
            .setFilterPolicy(new BloomFilter(10));
        int processors = Runtime.getRuntime().availableProcessors();
        Options options = new Options().setCreateIfMissing(true).setIncreaseParallelism(processors).setTableFormatConfig(table);
        try {
            return RocksDB.open(options, properties.getProperty("dir"));
        } catch (RocksDBException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    byte[] get(byte[] key) throws RocksDBException {
        return shared.get(key);
    }

    @Override
    void put(byte[] key, byte[] value) throws RocksDBException {
        shared.put(key, value);
    }

    @Override
    boolean remove(byte[] key) throws RocksDBException {
        shared.delete(key);
        return true;
    }

    @Override
    boolean scan(byte[] from, int count, Vector<byte[]> values) throws RocksDBException {
        try (RocksIterator iterator = shared.newIterator()) {
            for (iterator.seek(from); iterator.isValid() && values.size() < count; iterator.next()) {
                values.add(iterator.value());
            }
            iterator.status();
        }
        return true;
    }
}
