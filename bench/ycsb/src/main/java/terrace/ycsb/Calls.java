package terrace.ycsb;

import site.ycsb.Status;

/** Calls that may fail: a failure is printed, and counted by YCSB. */
final class Calls {
    private Calls() {}

    /** What a binding does for one operation. */
    interface Call {
        Status run() throws Exception;
    }

    static Status run(Call call) {
        try {
            return call.run();
        } catch (Exception e) {
            System.err.println(e);
            return Status.ERROR;
        }
    }
}
