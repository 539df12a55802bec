package terrace.ycsb;

import java.io.IOException;
import java.util.Properties;

/** terrace's store in the program, by its C interface (native.c). Its keys have no order: no scans. */
public final class StoreDb extends ValueDb {
    private static long bucket;

    static native long open(String dir, long memory) throws IOException;

    static native void close(long bucket);

    static native void put(long bucket, byte[] key, byte[] value) throws IOException;

    static native byte[] get(long bucket, byte[] key) throws IOException;

    static native boolean remove(long bucket, byte[] key) throws IOException;

    /** YCSB calls this before its clock starts; what it opens is closed after the clock has stopped. */
    @Override
    public void setProperties(Properties properties) {
        super.setProperties(properties);
        synchronized (StoreDb.class) {
            if (bucket == 0) {
                System.load(properties.getProperty("library"));
                try {
                    bucket = open(properties.getProperty("dir"), Long.parseLong(properties.getProperty("memory")));
                } catch (IOException e) {
                    throw new IllegalStateException(e);
                }
                Runtime.getRuntime().addShutdownHook(new Thread(() -> close(bucket)));
            }
        }
    }

    @Override
    byte[] get(byte[] key) throws IOException {
        return get(bucket, key);
    }

    @Override
    void put(byte[] key, byte[] value) throws IOException {
        put(bucket, key, value);
    }

    @Override
    boolean remove(byte[] key) throws IOException {
        return remove(bucket, key);
    }
}
