package terrace.ycsb;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/** A system whose records are whole values: an update reads the record, replaces the fields and puts it, as YCSB's binding for RocksDB does. */
abstract class ValueDb extends DB {
    /** The value of a key; null: there is none. */
    abstract byte[] get(byte[] key) throws Exception;

    abstract void put(byte[] key, byte[] value) throws Exception;

    abstract boolean remove(byte[] key) throws Exception;

    /** Adds up to `count` values in the order of keys from `from` on; false: the system has no such order. */
    boolean scan(byte[] from, int count, Vector<byte[]> values) throws Exception {
        return false;
    }

    @Override
    public void init() throws DBException {}

    @Override
    public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        return Calls.run(() -> {
            byte[] value = get(Record.key(key));
            if (value == null) {
                return Status.NOT_FOUND;
            }
            Record.decode(value, fields, result);
            return Status.OK;
        });
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        return Calls.run(() -> {
            byte[] name = Record.key(key);
            byte[] old = get(name);
            if (old == null) {
                return Status.NOT_FOUND;
            }
            put(name, Record.encode(old, values));
            return Status.OK;
        });
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        return Calls.run(() -> {
            put(Record.key(key), Record.encode(null, values));
            return Status.OK;
        });
    }

    @Override
    public Status delete(String table, String key) {
        return Calls.run(() -> remove(Record.key(key)) ? Status.OK : Status.NOT_FOUND);
    }

    @Override
    public Status scan(
            String table,
            String from,
            int count,
            Set<String> fields,
            Vector<HashMap<String, ByteIterator>> result) {
        return Calls.run(() -> {
            Vector<byte[]> values = new Vector<>();
            if (!scan(Record.key(from), count, values)) {
                return Status.NOT_IMPLEMENTED;
            }
            for (byte[] value : values) {
                HashMap<String, ByteIterator> record = new HashMap<>();
                Record.decode(value, fields, record);
                result.add(record);
            }
            return Status.OK;
        });
    }
}
