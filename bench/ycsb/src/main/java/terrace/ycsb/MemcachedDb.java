package terrace.ycsb;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import site.ycsb.DBException;

/**
 * memcached by its text protocol, over a blocking socket as Jedis has one. YCSB's binding takes spymemcached, whose thread between caller and socket would
 * be measured here, on two processors, more than the server.
 */
public final class MemcachedDb extends ValueDb {
    private Socket socket;
    private InputStream in;
    private OutputStream out;

    @Override
    public void init() throws DBException {
        try {
            socket = new Socket("127.0.0.1", Integer.parseInt(getProperties().getProperty("port")));
            socket.setTcpNoDelay(true);
            in = new BufferedInputStream(socket.getInputStream());
            out = socket.getOutputStream();
        } catch (IOException e) {
            throw new DBException(e);
        }
    }

    @Override
    public void cleanup() throws DBException {
        try {
            socket.close();
        } catch (IOException e) {
            throw new DBException(e);
        }
    }

    private void send(String head, byte[] key, String tail, byte[] value) throws IOException {
        ByteArrayOutputStream request = new ByteArrayOutputStream(64 + key.length + value.length);
        request.write(head.getBytes(StandardCharsets.US_ASCII));
        request.write(key);
        request.write(tail.getBytes(StandardCharsets.US_ASCII));
        if (value.length > 0) {
            request.write(value);
            request.write('\r');
            request.write('\n');
        }
        request.writeTo(out);
    }

    private String line() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("memcached has closed the connection");
            }
            line.append((char) c);
        }
        line.setLength(line.length() - 1);
        return line.toString();
    }

    @Override
    byte[] get(byte[] key) throws IOException {
        send("get ", key, "\r\n", new byte[0]);
        String line = line();
        if (line.equals("END")) {
            return null;
        }
        if (!line.startsWith("VALUE ")) {
            throw new IOException("memcached: " + line);
        }
        byte[] value = in.readNBytes(Integer.parseInt(line.substring(line.lastIndexOf(' ') + 1)));
        if (!line().isEmpty() || !line().equals("END")) {
            throw new IOException("memcached: a value without its end");
        }
        return value;
    }

    @Override
    void put(byte[] key, byte[] value) throws IOException {
        send("set ", key, " 0 0 " + value.length + "\r\n", value);
        String line = line();
        if (!line.equals("STORED")) {
            throw new IOException("memcached: " + line);
        }
    }

    @Override
    boolean remove(byte[] key) throws IOException {
        send("delete ", key, "\r\n", new byte[0]);
        return line().equals("DELETED");
    }
}
