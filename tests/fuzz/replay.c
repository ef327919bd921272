/*
 * Runs a fuzz entry point over every file of the folders or files given, without libFuzzer: found
 * inputs stay tests in every build. Must not know what is fuzzed. Single thread.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int
replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(16u << 20);
    size_t len;

    if (file == NULL || data == NULL) {
        fprintf(stderr, "replay: cannot read '%s'\n", path);
        exit(1);
    }
    len = fread(data, 1, 16u << 20, file);
    fclose(file);
    /* An exact-size copy, so that the address sanitizer sees one byte too far. */
    uint8_t *exact = malloc(len > 0 ? len : 1);
    if (exact == NULL)
        exit(1);
    for (size_t i = 0; i < len; i++)
        exact[i] = data[i];
    free(data);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    return 1;
}

int
main(int argc, char **argv)
{
    int count = 0;

    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st) == 0 && S_ISREG(st.st_mode)) {
            count += replay_file(argv[i]);
            continue;
        }
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            fprintf(stderr, "replay: no seeds in '%s'\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            count += replay_file(path);
        }
        closedir(dir);
    }
    printf("replayed %d inputs\n", count);
    return count > 0 ? 0 : 1; /* A test that ran nothing is no test. */
}
