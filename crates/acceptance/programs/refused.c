/* Asks for what a recording cannot give: seccomp's strict mode, a filter as long as the kernel allows, system calls that
   become signals. Prints what came of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sock_filter code[4096];

int main(int argc, char **argv)
{
    int result = 0;
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "strict") == 0) {
        result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
        if (result == 0) {
            write(1, "strict\n", 7);
            syscall(SYS_exit, 0);
        }
    } else if (strcmp(mode, "probe") == 0) {
        // How libseccomp finds out whether there is such a system call: the kernel itself refuses this.
        result = syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL);
    } else if (strcmp(mode, "strict argument") == 0) {
        result = syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, code);
    } else if (strcmp(mode, "strict filtered") == 0) {
        code[0] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
        if (result == 0)
            result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    } else if (strcmp(mode, "long") == 0) {
        for (int i = 0; i < 4096; i++)
            code[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {4096, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    } else if (strcmp(mode, "dispatch") == 0) {
        static char selector;
        result = prctl(59, 1, 0, 0, &selector);
    }
    puts(result == 0 ? "accepted" : strerror(errno));
    return 0;
}
