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
 * A server whose records are values, spoken to over a blocking socket. YCSB's spymemcached has a thread between caller and socket, and puts the requests of all callers on one
 * connection: on two processors it would be measured more than servers.
 */
abstract class SocketDb extends ValueDb {
    private Socket socket;
    InputStream in;
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

    void send(String head, byte[] key, String tail, byte[] value) throws IOException {
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

    String line() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("the server has closed the connection");
            }
            line.append((char) c);
        }
        line.setLength(line.length() - 1);
        return line.toString();
    }
}
