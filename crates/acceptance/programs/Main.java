// Threads, a null pointer (which the virtual machine notices by SIGSEGV), a stack that overflows, a garbage collection.
public class Main {
    static int depth(int n) {
        return depth(n + 1) + 1;
    }

    static long work(int n) {
        long sum = 0;
        for (int i = 0; i < 300000; i++)
            sum = sum * 31 + i * n;
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        Thread[] threads = new Thread[4];
        long[] sums = new long[4];
        for (int t = 0; t < 4; t++) {
            final int n = t;
            threads[t] = new Thread(() -> sums[n] = work(n));
            threads[t].start();
        }
        for (Thread thread : threads)
            thread.join();
        for (long sum : sums)
            System.out.println(sum);
        String nothing = arguments.length > 5 ? "" : null;
        try {
            nothing.length();
        } catch (NullPointerException e) {
            System.out.println("null");
        }
        try {
            depth(0);
        } catch (StackOverflowError e) {
            System.out.println("deep");
        }
        System.gc();
        System.exit(8);
    }
}
