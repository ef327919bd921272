/*
 * Each allocation of the readers and writers of profiles fails once: an honest error, no leak, no
 * crash, nothing handed out. The allocator is replaced for this program; glibc only, and not under
 * the address sanitizer, which replaces it too.
 */
#include "tests/support/ef_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/formats/formats.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPLACED 0
#else
#define REPLACED 1
#endif

static long fail_in;     /* allocations until one fails; 0 = none fails */
static bool reached;     /* the failure was; a call may get over it, as qsort does */
static long live_blocks; /* allocated and not freed; the tests have one thread */

#if REPLACED
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *block);

static bool
now(void)
{
    if (fail_in == 0 || --fail_in > 0)
        return false;
    reached = true;
    return true;
}

void *
malloc(size_t size)
{
    void *block = now() ? NULL : __libc_malloc(size);

    live_blocks += block != NULL;
    return block;
}

void *
calloc(size_t count, size_t size)
{
    void *block = now() ? NULL : __libc_calloc(count, size);

    live_blocks += block != NULL;
    return block;
}

void *
realloc(void *old, size_t size)
{
    void *block = now() ? NULL : __libc_realloc(old, size);

    live_blocks += old == NULL && block != NULL;
    return block;
}

void
free(void *block)
{
    live_blocks -= block != NULL;
    __libc_free(block);
}
#endif

/* All of the first, then every 101st: a prime, so that loops are not hit at the same place. */
static long
next_failure(long n)
{
    return n < 300 ? n + 1 : n + 101;
}

static void
require_honest(ef_rc rc, const struct ef_err *err, const char *what, long n)
{
    /* A buffer cannot tell its limit from no memory, and says both. */
    bool full = rc == EF_ELIMIT && strstr(err->msg, "memory ran out") != NULL;
    /* jansson 2.14 takes a token that it has no memory for to be a wrong one. */
    bool token = rc == EF_ECORRUPT && strstr(err->msg, "not JSON: ") != NULL;

    if (rc != EF_ENOMEM && !full && !token)
        fail_msg("%s, allocation %ld: %s", what, n, err->msg);
    assert_int_equal(err->rc, rc);
}

static void
fail_reading(const struct ef_format_ops *format, const uint8_t *data, size_t len)
{
    long failures = 0;

    reached = true;
    for (long n = 1; reached; n = next_failure(n)) {
        struct ef_profile *profile = NULL;
        struct ef_err err = {0};
        long before = live_blocks;
        ef_rc rc;
        reached = false;
        fail_in = n;
        rc = format->read(data, len, &ef_profile_limits_default, &profile, &err);
        fail_in = 0;
        if (rc != EF_OK) {
            assert_null(profile);
            require_honest(rc, &err, format->name, n);
            failures++;
        }
        ef_profile_free(profile);
        if (live_blocks != before)
            fail_msg("%s, allocation %ld: %ld blocks leak", format->name, n, live_blocks - before);
    }
    assert_true(failures >= 5); /* opening a profile alone */
}

static void
fail_writing(const struct ef_format_ops *format, const struct ef_profile *profile)
{
    const struct ef_format_about about = {.name = "n", .build = "v41", .program = "shop"};

    reached = true;
    for (long n = 1; reached; n = next_failure(n)) {
        struct ef_err err = {0};
        struct ef_buf out;
        ef_rc rc;
        long before = live_blocks;
        ef_buf_init(&out, EF_FORMAT_OUTPUT_BYTES_MAX);
        reached = false;
        fail_in = n;
        rc = format->write(profile, &about, &out, &err);
        fail_in = 0;
        if (rc != EF_OK) {
            assert_int_equal(out.len, 0);
            require_honest(rc, &err, format->name, n);
        }
        ef_buf_fini(&out);
        if (live_blocks != before)
            fail_msg("%s, allocation %ld: %ld blocks leak", format->name, n, live_blocks - before);
    }
}

static struct ef_profile *
read_capture(const char *name)
{
    struct ef_profile *profile = NULL;
    size_t len;
    uint8_t *data = ef_test_read_file(name, &len);

    assert_int_equal(
        ef_format_read(NULL, NULL, data, len, &ef_profile_limits_default, &profile, NULL), EF_OK);
    free(data);
    return profile;
}

static const struct {
    const char *format, *capture;
} cases[] = {
    {"pprof", "v8/workerd-cpu.cpuprofile.json"},
    {"speedscope", "v8/workerd-cpu.cpuprofile.json"},
    {"folded", "v8/workerd-cpu.cpuprofile.json"},
    {"cpuprofile", "v8/workerd-cpu.cpuprofile.json"},
    {"json", "v8/workerd-cpu.cpuprofile.json"},
    {"heapprofile", "v8/workerd-heap-512k.heapprofile.json"},
};

static void
readers_survive_every_failed_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        const struct ef_format_ops *format = ef_format_find(cases[i].format);
        struct ef_profile *profile = read_capture(cases[i].capture);
        struct ef_buf out;
        ef_buf_init(&out, EF_FORMAT_OUTPUT_BYTES_MAX);
        assert_int_equal(format->write(profile, &(struct ef_format_about){0}, &out, NULL), EF_OK);
        if (format->read != NULL)
            fail_reading(format, out.data, out.len);
        ef_buf_fini(&out);
        ef_profile_free(profile);
    }
}

static void
writers_survive_every_failed_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        struct ef_profile *profile = read_capture(cases[i].capture);
        fail_writing(ef_format_find(cases[i].format), profile);
        ef_profile_free(profile);
    }
}

static void
ticks_and_merges_survive_every_failed_allocation(void **state)
{
    struct ef_profile *other = read_capture(cases[0].capture);
    size_t len;
    uint8_t *data = ef_test_read_file(cases[0].capture, &len);

    (void)state;
    reached = true;
    for (long n = 1; reached; n = next_failure(n)) {
        struct ef_cpuprofile ticks = {0};
        struct ef_err err = {0};
        long before = live_blocks;
        ef_rc rc;
        reached = false;
        fail_in = n;
        rc = ef_cpuprofile_read_ticks(data, len, &ef_profile_limits_default, &ticks, &err);
        fail_in = 0;
        if (rc != EF_OK)
            require_honest(rc, &err, "ticks", n);
        ef_cpuprofile_fini(&ticks);
        assert_int_equal(live_blocks, before);
    }
    reached = true;
    for (long n = 1; reached; n = next_failure(n)) {
        struct ef_profile *profile = NULL;
        struct ef_err err = {0};
        long before = live_blocks;
        ef_rc rc;
        reached = false;
        fail_in = n;
        rc = ef_profile_open(&ef_profile_limits_default, &profile, &err);
        if (rc == EF_OK)
            rc = ef_profile_merge(profile, other, 1, &err);
        fail_in = 0;
        if (rc != EF_OK)
            require_honest(rc, &err, "merge", n);
        ef_profile_free(profile);
        assert_int_equal(live_blocks, before);
    }
    free(data);
    ef_profile_free(other);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_survive_every_failed_allocation),
        cmocka_unit_test(writers_survive_every_failed_allocation),
        cmocka_unit_test(ticks_and_merges_survive_every_failed_allocation),
    };

    if (!REPLACED) {
        printf("skipped: the sanitizer has its own allocator\n");
        return 0;
    }
    return cmocka_run_group_tests_name("formats_allocation", tests, NULL, NULL);
}
