/* Exec in the same process, once: itself with one more argument; before that an exec that fails. */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc == 1) {
        char *missing[] = {"missing", NULL};
        execv("/nonexistent/program", missing);
        say(errno == ENOENT ? "failed once\n" : "failed oddly\n");
        char *again[] = {argv[0], "again", NULL};
        execv("/proc/self/exe", again);
        return 1;
    }
    say(strcmp(argv[1], "again") == 0 ? "second image\n" : "wrong argument\n");
    return 6;
}
