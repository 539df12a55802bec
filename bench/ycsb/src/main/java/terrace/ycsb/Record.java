package terrace.ycsb;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;

/** A record as one value, for systems whose values have no fields: for each field the lengths of name and content, and both. */
final class Record {
    private Record() {}

    static byte[] key(String key) {
        return key.getBytes(StandardCharsets.UTF_8);
    }

    /** The fields of `values`, in the place of those of the same name in `old`, which may be null. */
    static byte[] encode(byte[] old, Map<String, ByteIterator> values) {
        Map<String, ByteIterator> all = new HashMap<>();
        if (old != null) {
            decode(old, null, all);
        }
        all.putAll(values);
        Map<byte[], byte[]> fields = new HashMap<>();
        int bytes = 0;
        for (Map.Entry<String, ByteIterator> field : all.entrySet()) {
            byte[] name = key(field.getKey());
            byte[] content = field.getValue().toArray();
            fields.put(name, content);
            bytes += 8 + name.length + content.length;
        }
        ByteBuffer out = ByteBuffer.allocate(bytes);
        fields.forEach((name, content) -> out.putInt(name.length).put(name).putInt(content.length).put(content));
        return out.array();
    }

    /** Puts the fields that are asked for, all if that is null, into `result`. */
    static void decode(byte[] record, Set<String> wanted, Map<String, ByteIterator> result) {
        ByteBuffer in = ByteBuffer.wrap(record);
        while (in.hasRemaining()) {
            byte[] name = new byte[in.getInt()];
            in.get(name);
            int length = in.getInt();
            String field = new String(name, StandardCharsets.UTF_8);
            if (wanted == null || wanted.contains(field)) {
                result.put(field, new ByteArrayByteIterator(record, in.position(), length));
            }
            in.position(in.position() + length);
        }
    }
}
