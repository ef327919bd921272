/*
 * Temporary folders, free ports, seeds for the tests. Test thread only.
 */
#include "tests/support/ef_test.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

char *
ef_test_tmpdir(void)
{
    const char *base = getenv("TMPDIR");
    char path[512];

    snprintf(path, sizeof(path), "%s/ef-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL)
        fail_msg("cannot make a folder from '%s'", path);
    return strdup(path);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void
ef_test_tmpdir_remove(char *path)
{
    if (path == NULL)
        return;
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

int
ef_test_free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        fail_msg("no free port");
    close(fd);
    return ntohs(addr.sin_port);
}

uint8_t *
ef_test_read_file(const char *path, size_t *ret_len)
{
    char full[1024];
    const char *source = getenv("EF_SOURCE_DIR");
    FILE *file;
    long len;
    uint8_t *data;

    if (path[0] == '/')
        snprintf(full, sizeof(full), "%s", path);
    else
        snprintf(full, sizeof(full), "%s/tests/data/%s", source != NULL ? source : ".", path);
    file = fopen(full, "rb");
    if (file == NULL)
        fail_msg("no test file '%s'", full);
    fseek(file, 0, SEEK_END);
    len = ftell(file);
    rewind(file);
    data = malloc((size_t)len + 1);
    if (data == NULL || fread(data, 1, (size_t)len, file) != (size_t)len)
        fail_msg("cannot read '%s'", full);
    data[len] = 0;
    fclose(file);
    *ret_len = (size_t)len;
    return data;
}

uint64_t
ef_test_seed(void)
{
    const char *text = getenv("EF_TEST_SEED");
    struct timespec now;
    uint64_t seed;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = text != NULL ? strtoull(text, NULL, 0)
                        : (uint64_t)now.tv_nsec * 2654435761u + (uint64_t)now.tv_sec;
    print_message("EF_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
