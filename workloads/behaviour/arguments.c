/* Prints the number of its environment variables that start with TRACKWAY, and its arguments. With --descriptors first, also
   how many descriptors it has: that depends on who starts it, but must be the same with and without a recorder. */
#include "common.h"
#include <fcntl.h>

extern char **environ;

static int count_descriptors(void)
{
    int count = 0;
    for (int descriptor = 0; descriptor < 1024; descriptor++)
        count += fcntl(descriptor, F_GETFD) != -1;
    return count;
}

int main(int argc, char **argv)
{
    int variables = 0;
    for (char **variable = environ; *variable != NULL; variable++)
        variables += strncmp(*variable, "TRACKWAY", 8) == 0;
    printf("variables %d\n", variables);
    if (argc > 1 && strcmp(argv[1], "--descriptors") == 0)
        printf("descriptors %d\n", count_descriptors());
    for (int i = 1; i < argc; i++)
        printf("%d: %s\n", i, argv[i]);
    return argc - 1;
}
