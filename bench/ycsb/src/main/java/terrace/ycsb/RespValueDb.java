package terrace.ycsb;

import redis.clients.jedis.Jedis;

/** A server with Redis' protocol, whose records are values of GET and SET: what memcached is compared with. */
public final class RespValueDb extends ValueDb {
    private Jedis server;

    @Override
    public void init() {
        server = new Jedis("127.0.0.1", Integer.parseInt(getProperties().getProperty("port")), 60_000);
        server.connect();
    }

    @Override
    public void cleanup() {
        server.close();
    }

    @Override
    byte[] get(byte[] key) {
        return server.get(key);
    }

    @Override
    void put(byte[] key, byte[] value) {
        server.set(key, value);
    }

    @Override
    boolean remove(byte[] key) {
        return server.del(key) == 1;
    }
}
