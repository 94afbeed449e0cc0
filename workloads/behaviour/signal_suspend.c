/* System calls that wait with a mask of their own: sigsuspend, ppoll, pselect, epoll_pwait, sigtimedwait. A signal that is
   blocked outside arrives inside, and only there. */
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

static volatile sig_atomic_t count;

static void counter(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    count++;
}

static void expect(const char *name, int result, int before)
{
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    printf("%s: %s, handler ran %d, blocked again %d\n", name, result == -1 && errno == EINTR ? "EINTR" : "other",
           count - before, sigismember(&mask, SIGUSR1));
}

int main(void)
{
    handle(SIGUSR1, counter, SA_RESTART);
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);

    raise(SIGUSR1);
    CHECK(count == 0);
    expect("sigsuspend", sigsuspend(&open), 0);

    raise(SIGUSR1);
    CHECK(count == 1);
    struct timespec minute = {.tv_sec = 60};
    expect("ppoll", ppoll(NULL, 0, &minute, &open), 1);

    raise(SIGUSR1);
    CHECK(count == 2);
    expect("pselect", pselect(0, NULL, NULL, NULL, &minute, &open), 2);

    int poller = epoll_create1(0);
    CHECK(poller >= 0);
    struct epoll_event event;
    raise(SIGUSR1);
    CHECK(count == 3);
    expect("epoll_pwait", epoll_pwait(poller, &event, 1, 60000, &open), 3);

    raise(SIGUSR1);
    siginfo_t information;
    int waited = sigtimedwait(&blocked, &information, &minute);
    printf("sigtimedwait: %d, handler ran %d\n", waited == SIGUSR1, count - 4);

    struct timespec none = {0};
    CHECK(ppoll(NULL, 0, &none, &blocked) == 0);
    return count;
}
