/*
 * The RocksDB backend on a disk that is full: commits say EF_ENOSPC, what was acknowledged stays
 * readable, nothing is there by halves, and commits go on when there is room again. Uses a small
 * tmpfs of its own; skipped, and said so, where mounting is not allowed.
 */
#include "tests/support/ef_test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "storage/store.h"

#define TIER EF_TIER_10S
#define DISK_OPTIONS "size=24m"
#define BLOCK_LEN 20000
#define SERIES 3

struct fixture {
    char *folder;       /* the mount point */
    char path[600];     /* of the store */
    char hog_path[600]; /* a file that takes the room */
    struct ef_store *store;
    uint64_t acknowledged; /* batches 1 … are committed */
    bool mounted;
};

static void
open_store(struct fixture *f)
{
    const struct ef_store_options options = {
        .write_buffer_bytes = 2u << 20, .cache_bytes = 1u << 20, .wal_bytes_max = 4u << 20};
    struct ef_err err = {0};

    if (ef_store_open("rocksdb", f->path, &options, &f->store, &err) != EF_OK)
        fail_msg("open: %s", err.msg);
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->folder = ef_test_tmpdir();
    *state = f;
    if (mount("ef-test", f->folder, "tmpfs", 0, DISK_OPTIONS) != 0) {
        print_message("SKIPPED: cannot mount a tmpfs here: %s\n", strerror(errno));
        return 0;
    }
    f->mounted = true;
    snprintf(f->path, sizeof(f->path), "%s/store", f->folder);
    snprintf(f->hog_path, sizeof(f->hog_path), "%s/hog", f->folder);
    open_store(f);
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_store_close(f->store);
    if (f->mounted && umount2(f->folder, MNT_DETACH) != 0)
        print_message("cannot unmount '%s': %s\n", f->folder, strerror(errno));
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

/* Takes all the room that is left but `left` bytes. */
static void
take_room(struct fixture *f, size_t left)
{
    static const char zeros[4096];
    int fd = open(f->hog_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    off_t len;

    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof(zeros)) == sizeof(zeros))
        ;
    len = lseek(fd, 0, SEEK_END);
    assert_int_equal(ftruncate(fd, len > (off_t)left ? len - (off_t)left : 0), 0);
    close(fd);
}

static void
free_room(struct fixture *f)
{
    assert_int_equal(unlink(f->hog_path), 0);
}

/* Bytes that do not compress, different for each batch and series. */
static void
fill_block(uint8_t *block, uint64_t n, uint32_t series)
{
    uint64_t x = n * 977 + series + 1;

    for (size_t i = 0; i < BLOCK_LEN; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        block[i] = (uint8_t)x;
    }
}

/* Batch number n: a block and totals in each series, and meta "last". */
static struct ef_store_batch *
make_batch(struct fixture *f, uint64_t n)
{
    struct ef_store_totals totals = {.samples = n};
    struct ef_store_batch *batch = NULL;
    static uint8_t block[BLOCK_LEN];

    assert_int_equal(ef_store_batch_open(f->store, &batch, NULL), EF_OK);
    for (uint32_t series = 1; series <= SERIES; series++) {
        fill_block(block, n, series);
        assert_int_equal(
            ef_store_put_block(batch, TIER, series, (int64_t)n, 0, block, sizeof(block), NULL),
            EF_OK);
        assert_int_equal(ef_store_put_totals(batch, TIER, series, (int64_t)n, 0, &totals, NULL),
                         EF_OK);
    }
    assert_int_equal(ef_store_put_meta(batch, "last", &n, sizeof(n), NULL), EF_OK);
    return batch;
}

static void
commit_next(struct fixture *f)
{
    struct ef_store_batch *batch = make_batch(f, f->acknowledged + 1);
    struct ef_err err = {0};

    if (ef_store_commit(f->store, batch, &err) != EF_OK)
        fail_msg("batch %llu: %s", (unsigned long long)f->acknowledged + 1, err.msg);
    ef_store_batch_free(batch);
    f->acknowledged++;
}

/* Commits until the disk is full; gives the batch that failed. */
static struct ef_store_batch *
commit_until_full(struct fixture *f)
{
    for (int i = 0; i < 2000; i++) {
        struct ef_store_batch *batch = make_batch(f, f->acknowledged + 1);
        struct ef_err err = {0};
        ef_rc rc = ef_store_commit(f->store, batch, &err);
        if (rc == EF_ENOSPC) {
            assert_non_null(strstr(err.msg, f->path));
            return batch;
        }
        assert_int_equal(rc, EF_OK);
        ef_store_batch_free(batch);
        f->acknowledged++;
    }
    fail_msg("the disk did not become full");
    return NULL;
}

struct seen {
    uint64_t next, wrong;
    uint32_t series;
};

static ef_rc
see_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    struct seen *seen = arg;
    static _Thread_local uint8_t expected[BLOCK_LEN];

    (void)part;
    fill_block(expected, (uint64_t)bucket_ns, seen->series);
    seen->wrong += (uint64_t)bucket_ns != seen->next || len != BLOCK_LEN ||
                   memcmp(block, expected, BLOCK_LEN) != 0;
    seen->next++;
    return EF_OK;
}

static ef_rc
see_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct seen *seen = arg;

    (void)part;
    seen->wrong += (uint64_t)bucket_ns != seen->next || totals->samples != seen->next;
    seen->next++;
    return EF_OK;
}

/* All acknowledged batches are there and whole; at most one more, whole as well. */
static void
check_all(struct fixture *f)
{
    struct ef_buf last;
    uint64_t n;

    ef_buf_init(&last, 64);
    assert_int_equal(ef_store_get_meta(f->store, "last", &last, NULL), EF_OK);
    assert_int_equal(last.len, sizeof(n));
    memcpy(&n, last.data, sizeof(n));
    ef_buf_fini(&last);
    assert_in_range(n, f->acknowledged, f->acknowledged + 1);
    for (uint32_t series = 1; series <= SERIES; series++) {
        struct seen blocks = {1, 0, series}, totals = {1, 0, series};
        assert_int_equal(
            ef_store_fold(f->store, TIER, series, 0, INT64_MAX, see_block, &blocks, NULL), EF_OK);
        assert_int_equal(
            ef_store_fold_totals(f->store, TIER, series, 0, INT64_MAX, see_totals, &totals, NULL),
            EF_OK);
        assert_int_equal(blocks.wrong + totals.wrong, 0);
        assert_int_equal(blocks.next, n + 1);
        assert_int_equal(totals.next, n + 1);
    }
}

static void
reopen(struct fixture *f)
{
    ef_store_close(f->store);
    f->store = NULL;
    open_store(f);
}

/*
 * Tries a batch again on the full disk. Most often that is EF_ENOSPC; but RocksDB may have deleted
 * files of its own meanwhile, and then the commit rightly succeeds: gives NULL.
 */
static struct ef_store_batch *
try_again(struct fixture *f, struct ef_store_batch *failed)
{
    ef_rc rc;

    take_room(f, 0);
    rc = ef_store_commit(f->store, failed, NULL);
    if (rc == EF_ENOSPC)
        return failed;
    assert_int_equal(rc, EF_OK);
    ef_store_batch_free(failed);
    f->acknowledged++;
    return NULL;
}

/* The failed batch, if there is one, is committed, then others; all is there, also after reopening.
 */
static void
go_on(struct fixture *f, struct ef_store_batch *failed)
{
    struct ef_err err = {0};

    if (failed != NULL) {
        if (ef_store_commit(f->store, failed, &err) != EF_OK)
            fail_msg("after room was made: %s", err.msg);
        ef_store_batch_free(failed);
        f->acknowledged++;
    }
    for (int i = 0; i < 5; i++)
        commit_next(f);
    check_all(f);
    reopen(f);
    check_all(f);
}

static void
commits_go_on_when_there_is_room_again(void **state)
{
    struct fixture *f = *state;

    if (!f->mounted)
        skip();
    for (int round = 0; round < 4; round++) {
        struct ef_store_batch *failed;
        commit_next(f);
        take_room(f, (size_t)round * 300000 + 5000);
        failed = commit_until_full(f);
        check_all(f);
        for (int again = 0; failed != NULL && again < 3; again++)
            failed = try_again(f, failed);
        check_all(f);
        free_room(f);
        go_on(f, failed);
    }
}

/* Goal: a flush or compaction that fails in the background does not stop the store for good. */
static void
a_full_disk_met_by_a_flush_is_overcome(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *failed;
    struct ef_err err = {0};
    int tries = 0;
    ef_rc rc;

    if (!f->mounted)
        skip();
    for (int i = 0; i < 25; i++)
        commit_next(f); /* about 1.5 MB, in the log and in memory only */
    do {                /* what was compacted may leave room once more */
        take_room(f, 0);
        rc = ef_store_compact(f->store, &err);
    } while (rc == EF_OK && ++tries < 20);
    if (rc != EF_ENOSPC && rc != EF_EIO)
        fail_msg("compaction gave %s", ef_rc_name(rc));
    check_all(f);
    failed = make_batch(f, f->acknowledged + 1);
    while ((rc = ef_store_commit(f->store, failed, &err)) == EF_OK) {
        ef_store_batch_free(failed);
        f->acknowledged++;
        failed = make_batch(f, f->acknowledged + 1);
    }
    assert_int_equal(rc, EF_ENOSPC);
    check_all(f);
    free_room(f);
    go_on(f, failed);
}

/* Goal: with a full disk the store can be closed, and opened when there is room. */
static void
a_store_closed_on_a_full_disk_opens_whole(void **state)
{
    struct fixture *f = *state;
    struct ef_store *store = NULL;
    struct ef_err err = {0};
    ef_rc rc;

    if (!f->mounted)
        skip();
    commit_next(f);
    take_room(f, 200000);
    ef_store_batch_free(commit_until_full(f));
    ef_store_close(f->store);
    f->store = NULL;
    take_room(f, 0);
    rc = ef_store_open("rocksdb", f->path, NULL, &store, &err);
    if (rc == EF_OK)
        ef_store_close(store); /* RocksDB found what it needed in what closing had freed */
    else
        assert_int_equal(rc, EF_ENOSPC);
    free_room(f);
    open_store(f);
    check_all(f);
}

static void
expiry_makes_room_on_a_full_disk(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *failed;
    struct ef_store_stat before, after;
    struct ef_err err = {0};
    ef_rc rc;

    if (!f->mounted)
        skip();
    commit_next(f);
    take_room(f, 9u << 20);
    failed = commit_until_full(f);
    ef_store_get_stat(f->store, &before);
    take_room(f, 0);
    rc = ef_store_expire(f->store, TIER, INT64_MAX, &err);
    assert_true(rc == EF_OK || (rc == EF_ENOSPC && strstr(err.msg, f->path) != NULL));
    free_room(f);
    if (ef_store_expire(f->store, TIER, INT64_MAX, &err) != EF_OK)
        fail_msg("expire: %s", err.msg);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_OK);
    ef_store_get_stat(f->store, &after);
    assert_true(after.disk_bytes < before.disk_bytes);
    assert_int_equal(ef_store_commit(f->store, failed, NULL), EF_OK);
    ef_store_batch_free(failed);
}

struct reader {
    struct fixture *f;
    atomic_bool done;
    atomic_int failures, reads;
};

static void *
read_on(void *arg)
{
    struct reader *reader = arg;

    while (!atomic_load(&reader->done)) {
        for (uint32_t series = 1; series <= SERIES; series++) {
            struct seen seen = {1, 0, series};
            if (ef_store_fold(reader->f->store, TIER, series, 0, INT64_MAX, see_block, &seen,
                              NULL) != EF_OK ||
                seen.wrong > 0)
                atomic_fetch_add(&reader->failures, 1);
        }
        atomic_fetch_add(&reader->reads, 1);
    }
    return NULL;
}

static void
readers_do_not_notice_that_the_store_mends_itself(void **state)
{
    struct fixture *f = *state;
    struct reader reader = {.f = f};
    struct ef_store_batch *failed;
    struct ef_err err = {0};
    pthread_t threads[2];
    ef_rc rc;

    if (!f->mounted)
        skip();
    commit_next(f);
    take_room(f, 1u << 20);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &reader), 0);
    failed = commit_until_full(f);
    free_room(f);
    /* Readers that never pause may hold up the mending: that is EF_EBUSY, to be tried again. */
    while ((rc = ef_store_commit(f->store, failed, &err)) == EF_EBUSY)
        ;
    atomic_store(&reader.done, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    if (rc != EF_OK)
        fail_msg("commit: %s", err.msg);
    ef_store_batch_free(failed);
    f->acknowledged++;
    assert_int_equal(atomic_load(&reader.failures), 0);
    assert_true(atomic_load(&reader.reads) > 0);
    check_all(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(commits_go_on_when_there_is_room_again),
        TEST(a_full_disk_met_by_a_flush_is_overcome),
        TEST(a_store_closed_on_a_full_disk_opens_whole),
        TEST(expiry_makes_room_on_a_full_disk),
        TEST(readers_do_not_notice_that_the_store_mends_itself),
    };

    return cmocka_run_group_tests_name("store on a full disk", tests, NULL, NULL);
}
