package terrace.ycsb;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * A server with Redis' protocol: a record is a hash, as in YCSB's own binding for Redis. The sorted set of keys that scans need is kept
 * when `index` is true; YCSB's binding keeps it always.
 */
public final class RespDb extends DB {
    private static final byte[] INDEX = "_indices".getBytes(StandardCharsets.UTF_8);

    private Jedis server;
    private boolean isIndexed;

    @Override
    public void init() throws DBException {
        isIndexed = Boolean.parseBoolean(getProperties().getProperty("index", "false"));
        server = new Jedis("127.0.0.1", Integer.parseInt(getProperties().getProperty("port")), 60_000);
        server.connect();
    }

    @Override
    public void cleanup() {
        server.close();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static Map<byte[], byte[]> fields(Map<String, ByteIterator> values) {
        Map<byte[], byte[]> fields = new HashMap<>();
        values.forEach((name, value) -> fields.put(bytes(name), value.toArray()));
        return fields;
    }

    @Override
    public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        return Calls.run(() -> read(bytes(key), fields, result) ? Status.OK : Status.NOT_FOUND);
    }

    private boolean read(byte[] key, Set<String> fields, Map<String, ByteIterator> result) {
        if (fields == null) {
            server.hgetAll(key).forEach((name, value) ->
                result.put(new String(name, StandardCharsets.UTF_8), new ByteArrayByteIterator(value)));
            return !result.isEmpty();
        }
        List<byte[]> values = server.hmget(key, fields.stream().map(RespDb::bytes).toArray(byte[][]::new));
        Iterator<String> names = fields.iterator();
        values.forEach(value -> {
            String name = names.next();
            if (value != null) {
                result.put(name, new ByteArrayByteIterator(value));
            }
        });
        return result.size() == fields.size();
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        return Calls.run(() -> {
            server.hset(bytes(key), fields(values));
            if (isIndexed) {
                server.zadd(INDEX, key.hashCode(), bytes(key));
            }
            return Status.OK;
        });
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        return Calls.run(() -> {
            server.hset(bytes(key), fields(values));
            return Status.OK;
        });
    }

    @Override
    public Status delete(String table, String key) {
        return Calls.run(() -> {
            if (isIndexed) {
                server.zrem(INDEX, bytes(key));
            }
            return server.del(bytes(key)) == 1 ? Status.OK : Status.NOT_FOUND;
        });
    }

    @Override
    public Status scan(
            String table,
            String from,
            int count,
            Set<String> fields,
            Vector<HashMap<String, ByteIterator>> result) {
        return Calls.run(() -> {
            List<byte[]> keys = server.zrangeByScore(INDEX, from.hashCode(), Double.POSITIVE_INFINITY, 0, count);
            for (byte[] key : keys) {
                HashMap<String, ByteIterator> record = new HashMap<>();
                read(key, fields, record);
                result.add(record);
            }
            return keys.isEmpty() ? Status.NOT_FOUND : Status.OK;
        });
    }
}
