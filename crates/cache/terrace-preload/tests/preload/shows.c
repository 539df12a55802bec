/* Prints its arguments, and whether the library is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *list = getenv("LD_PRELOAD");
    char line[4096];
    int is_loaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        is_loaded |= strstr(line, "libterrace_preload.so") != NULL;
    for (int i = 0; i < argc; i++)
        printf("%s ", argv[i]);
    printf("%d %s\n", is_loaded, !list ? "none" : strstr(list, "libterrace_preload.so") ? "library" : list);
    return 0;
}
