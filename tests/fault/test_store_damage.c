/*
 * Damaged, foreign and newer folders under the RocksDB backend: each is refused with an error that
 * names it, and nothing is lost or made anew by looking.
 */
#include "tests/support/ef_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/rocksdb/db.h"
#include "storage/store.h"

#define TIER EF_TIER_10S
#define BUCKETS 2000

struct fixture {
    char *folder;
    char path[600];
};

static ef_rc
open_store(struct fixture *f, struct ef_store **ret_store, struct ef_err *err)
{
    return ef_store_open("rocksdb", f->path, NULL, ret_store, err);
}

static struct ef_store *
must_open(struct fixture *f)
{
    struct ef_store *store = NULL;
    struct ef_err err = {0};

    if (open_store(f, &store, &err) != EF_OK)
        fail_msg("open: %s", err.msg);
    return store;
}

/* A store with some thousand blocks in table files. */
static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ef_store_batch *batch = NULL;
    struct ef_store *store;
    uint64_t x = 88172645463325252u;

    f->folder = ef_test_tmpdir();
    snprintf(f->path, sizeof(f->path), "%s/store", f->folder);
    store = must_open(f);
    assert_int_equal(ef_store_batch_open(store, &batch, NULL), EF_OK);
    for (int64_t at = 0; at < BUCKETS; at++) {
        uint64_t block[20];
        for (size_t i = 0; i < EF_COUNT_OF(block); i++)
            block[i] = x = x * 6364136223846793005u + 1;
        assert_int_equal(ef_store_put_block(batch, TIER, 1, at, 0, block, sizeof(block), NULL),
                         EF_OK);
    }
    assert_int_equal(ef_store_commit(store, batch, NULL), EF_OK);
    ef_store_batch_free(batch);
    ef_store_close(store);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

static ef_rc
count_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    (void)bucket_ns;
    (void)part;
    (void)block;
    (void)len;
    ++*(int *)arg;
    return EF_OK;
}

/* Name of the largest file of the store with the suffix. */
static void
find_file(struct fixture *f, const char *suffix, char *ret_path, size_t len)
{
    DIR *folder = opendir(f->path);
    off_t largest = -1;
    struct stat st;

    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        size_t name_len = strlen(entry->d_name), suffix_len = strlen(suffix);
        if (name_len < suffix_len || strcmp(entry->d_name + name_len - suffix_len, suffix) != 0)
            continue;
        if (fstatat(dirfd(folder), entry->d_name, &st, 0) == 0 && st.st_size > largest) {
            largest = st.st_size;
            snprintf(ret_path, len, "%s/%s", f->path, entry->d_name);
        }
    }
    closedir(folder);
    assert_true(largest >= 0);
}

static void
a_flipped_byte_in_a_table_is_told_when_it_is_read(void **state)
{
    struct fixture *f = *state;
    struct ef_store *store;
    struct ef_err err = {0};
    char table[1024];
    uint8_t byte;
    int count = 0, fd;

    find_file(f, ".sst", table, sizeof(table));
    fd = open(table, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, 50000), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, 50000), 1);
    close(fd);
    store = must_open(f);
    assert_int_equal(ef_store_fold(store, TIER, 1, 0, BUCKETS, count_block, &count, &err),
                     EF_ECORRUPT);
    assert_non_null(strstr(err.msg, f->path));
    assert_true(count < BUCKETS);
    ef_store_close(store);
}

static void
assert_refused(struct fixture *f, ef_rc rc)
{
    struct ef_store *store = NULL;
    struct ef_err err = {0};

    assert_int_equal(open_store(f, &store, &err), rc);
    assert_null(store);
    if (strstr(err.msg, f->path) == NULL)
        fail_msg("'%s' does not name the folder", err.msg);
}

static void
a_missing_table_is_told_at_open(void **state)
{
    struct fixture *f = *state;
    char table[1024];

    find_file(f, ".sst", table, sizeof(table));
    assert_int_equal(unlink(table), 0);
    assert_refused(f, EF_ECORRUPT);
}

static void
a_missing_current_does_not_make_a_new_store_over_the_old_one(void **state)
{
    struct fixture *f = *state;
    char current[1024], kept[1024];
    struct ef_store *store;
    int count = 0;

    snprintf(current, sizeof(current), "%s/CURRENT", f->path);
    snprintf(kept, sizeof(kept), "%s/kept", f->folder);
    assert_int_equal(rename(current, kept), 0);
    assert_refused(f, EF_ECORRUPT);
    assert_int_equal(rename(kept, current), 0);
    store = must_open(f);
    assert_int_equal(ef_store_fold(store, TIER, 1, 0, BUCKETS, count_block, &count, NULL), EF_OK);
    assert_int_equal(count, BUCKETS);
    ef_store_close(store);
}

static void
a_cut_manifest_is_told_at_open(void **state)
{
    struct fixture *f = *state;
    char current[1024], manifest[1100];
    FILE *file;

    snprintf(current, sizeof(current), "%s/CURRENT", f->path);
    file = fopen(current, "r");
    assert_non_null(file);
    snprintf(manifest, sizeof(manifest), "%s/", f->path);
    assert_non_null(fgets(manifest + strlen(manifest), 64, file));
    fclose(file);
    manifest[strcspn(manifest, "\n")] = '\0';
    assert_int_equal(truncate(manifest, 10), 0);
    assert_refused(f, EF_ECORRUPT);
}

/* Writes a value under a key past the front, as another version would. */
static void
write_raw(struct fixture *f, enum ef_family family, const struct ef_key *key, const void *value,
          size_t len)
{
    const struct ef_store_options options = {0};
    struct ef_writes writes;
    const struct ef_writes *list = &writes;
    struct ef_db *db = NULL;

    ef_writes_init(&writes);
    ef_writes_add(&writes, EF_WRITE_PUT, family, key, value, len);
    assert_int_equal(ef_db_open(f->path, &options, &db, NULL), EF_OK);
    ef_db_lock(db);
    assert_int_equal(ef_db_write(db, &list, 1, NULL), EF_OK);
    ef_db_unlock(db);
    ef_db_close(db);
    ef_writes_fini(&writes);
}

static void
a_newer_format_is_refused_and_says_so(void **state)
{
    struct fixture *f = *state;
    const uint8_t newer[4] = {EF_STORE_FORMAT + 1, 0, 0, 0};
    struct ef_key key = ef_key_meta(EF_META_FORMAT);
    struct ef_store *store = NULL;
    struct ef_err err = {0};

    write_raw(f, EF_FAMILY_META, &key, newer, sizeof(newer));
    assert_int_equal(open_store(f, &store, &err), EF_EUNSUP);
    assert_non_null(strstr(err.msg, "format 2"));
    assert_non_null(strstr(err.msg, "newer version"));
    assert_refused(f, EF_EUNSUP);
}

static ef_rc
ignore_version(void *arg, const struct ef_store_version *version)
{
    (void)arg;
    (void)version;
    return EF_OK;
}

static void
a_damaged_record_is_told_with_its_id(void **state)
{
    struct fixture *f = *state;
    struct ef_key key = ef_key_meta_id(EF_META_VERSION, 77);
    struct ef_store *store;
    struct ef_err err = {0};

    write_raw(f, EF_FAMILY_META, &key, "\x01\x02no end", 8);
    store = must_open(f);
    assert_int_equal(ef_store_each_version(store, ignore_version, NULL, &err), EF_ECORRUPT);
    assert_non_null(strstr(err.msg, f->path));
    assert_non_null(strstr(err.msg, "version 77"));
    ef_store_close(store);
}

static void
a_file_in_place_of_the_folder_is_refused(void **state)
{
    struct fixture *f = *state;

    snprintf(f->path, sizeof(f->path), "%s/file", f->folder);
    close(open(f->path, O_CREAT | O_WRONLY, 0600));
    assert_refused(f, EF_EINVAL);
    snprintf(f->path, sizeof(f->path), "%s/no/such/parent", f->folder);
    assert_refused(f, EF_ENOTFOUND);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_flipped_byte_in_a_table_is_told_when_it_is_read),
        TEST(a_missing_table_is_told_at_open),
        TEST(a_missing_current_does_not_make_a_new_store_over_the_old_one),
        TEST(a_cut_manifest_is_told_at_open),
        TEST(a_newer_format_is_refused_and_says_so),
        TEST(a_damaged_record_is_told_with_its_id),
        TEST(a_file_in_place_of_the_folder_is_refused),
    };

    return cmocka_run_group_tests_name("store with damages", tests, NULL, NULL);
}
