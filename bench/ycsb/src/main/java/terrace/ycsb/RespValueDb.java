package terrace.ycsb;

import java.io.IOException;

/** A server with Redis' protocol, whose records are values of GET and SET: what memcached is compared with. */
public final class RespValueDb extends SocketDb {
    @Override
    byte[] get(byte[] key) throws IOException {
        send("*2\r\n$3\r\nGET\r\n$" + key.length + "\r\n", key, "\r\n", new byte[0]);
        String line = line();
        if (line.equals("$-1")) {
            return null;
        }
        if (!line.startsWith("$")) {
            throw new IOException(line);
        }
        byte[] value = in.readNBytes(Integer.parseInt(line.substring(1)));
        if (!line().isEmpty()) {
            throw new IOException("a value without its end");
        }
        return value;
    }

    @Override
    void put(byte[] key, byte[] value) throws IOException {
        send("*3\r\n$3\r\nSET\r\n$" + key.length + "\r\n", key, "\r\n$" + value.length + "\r\n", value);
        String line = line();
        if (!line.equals("+OK")) {
            throw new IOException(line);
        }
    }

    @Override
    boolean remove(byte[] key) throws IOException {
        send("*2\r\n$3\r\nDEL\r\n$" + key.length + "\r\n", key, "\r\n", new byte[0]);
        return line().equals(":1");
    }
}
