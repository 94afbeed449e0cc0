/* A signal to oneself, by raise and by kill, with and without siginfo: the handler runs before the call returns. */
#include "common.h"

static volatile sig_atomic_t plain_count;

static void plain(int number)
{
    plain_count += number == SIGUSR1;
}

static void with_information(int number, siginfo_t *information, void *context)
{
    if (number == SIGUSR2 && information->si_pid == getpid() && context != NULL)
        say(information->si_code == SI_USER ? "kill\n" : "raise\n");
}

int main(void)
{
    CHECK(signal(SIGUSR1, plain) != SIG_ERR);
    for (int i = 0; i < 5; i++) {
        CHECK(raise(SIGUSR1) == 0);
        CHECK(plain_count == i + 1);
    }
    handle(SIGUSR2, with_information, 0);
    CHECK(raise(SIGUSR2) == 0);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    say("done\n");
    return plain_count;
}
