package terrace.ycsb;

import java.io.IOException;

/** memcached, or terrace as one, by the text protocol. */
public final class MemcachedDb extends SocketDb {
    @Override
    byte[] get(byte[] key) throws IOException {
        send("get ", key, "\r\n", new byte[0]);
        String line = line();
        if (line.equals("END")) {
            return null;
        }
        if (!line.startsWith("VALUE ")) {
            throw new IOException(line);
        }
        byte[] value = in.readNBytes(Integer.parseInt(line.substring(line.lastIndexOf(' ') + 1)));
        if (!line().isEmpty() || !line().equals("END")) {
            throw new IOException("a value without its end");
        }
        return value;
    }

    @Override
    void put(byte[] key, byte[] value) throws IOException {
        send("set ", key, " 0 0 " + value.length + "\r\n", value);
        String line = line();
        if (!line.equals("STORED")) {
            throw new IOException(line);
        }
    }

    @Override
    boolean remove(byte[] key) throws IOException {
        send("delete ", key, "\r\n", new byte[0]);
        return line().equals("DELETED");
    }
}
