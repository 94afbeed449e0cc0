/* Installs seccomp filters that name system calls. */
#ifndef BEHAVIOUR_SECCOMP_H
#define BEHAVIOUR_SECCOMP_H

#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* The calls in the list get the answer `listed`, all others `others`. */
static inline int filter_calls(const int *calls, int count, unsigned listed, unsigned others, int by_prctl)
{
    struct sock_filter code[128];
    int at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], count - i, 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
    struct sock_fprog program = {.len = at, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_prctl)
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

#define FILTER(listed, others, by_prctl, ...)                                                                          \
    do {                                                                                                               \
        const int calls[] = {__VA_ARGS__};                                                                             \
        CHECK(filter_calls(calls, sizeof calls / sizeof *calls, listed, others, by_prctl) == 0);                       \
    } while (0)

#endif
