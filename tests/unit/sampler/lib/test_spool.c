/*
 * The spool and its files: what survives a restart, a torn end, damage, a full disk and the bound.
 */
#include "tests/support/ef_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include "sampler/lib/spool.h"

#define PAYLOAD_BYTES 300

struct fixture {
    char *folder;
    char path[600];
    struct ef_wire_keys *keys;
    struct ef_spool spool;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->folder = ef_test_tmpdir();
    snprintf(f->path, sizeof(f->path), "%s/spool", f->folder);
    if (ef_wire_keys_open(NULL, &f->keys, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    if (f->spool.epochs != NULL)
        ef_spool_close(&f->spool);
    ef_wire_keys_free(f->keys);
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

static void
open_spool(struct fixture *f, const char *path, uint64_t bytes_max)
{
    if (ef_spool_open(&f->spool, path, bytes_max, f->keys, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

/* Adds a real, if strange, batch: one source whose host name makes it as long as wanted. */
static void
add(struct fixture *f)
{
    Everflame__V1__Batch batch = EVERFLAME__V1__BATCH__INIT;
    Everflame__V1__Source source = EVERFLAME__V1__SOURCE__INIT,
                          *sources[3] = {&source, &source, &source};
    struct ef_spool_epoch *epoch = ef_spool_present(&f->spool);
    struct ef_wire_header header = {
        .kind = EF_WIRE_BATCH, .epoch = epoch->epoch, .sequence = epoch->last_sequence + 1};
    char host[PAYLOAD_BYTES / 3];
    struct ef_buf out;
    uint8_t *data;
    size_t len;

    for (size_t i = 0; i < sizeof(host) - 1; i++)
        host[i] = (char)('a' + (header.sequence * 7 + i * i) % 26);
    host[sizeof(host) - 1] = 0;
    source.account = source.worker = source.version = "x";
    source.host = host;
    batch.n_sources = 3;
    batch.sources = sources;
    memcpy(header.publisher, f->spool.publisher, sizeof(header.publisher));
    ef_buf_init(&out, 1u << 20);
    if (ef_wire_encode(f->keys, &header, &batch.base, &out, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
    data = ef_buf_take(&out, &len);
    if (ef_spool_add(&f->spool, data, len, 2, 10, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

static void
add_many(struct fixture *f, unsigned count)
{
    while (count-- > 0)
        add(f);
}

static void
apply(struct fixture *f, uint64_t epoch, uint64_t acknowledged)
{
    struct ef_spool_resend resend = {0};

    ef_spool_apply(&f->spool, epoch, acknowledged, NULL, NULL, 0, &resend);
}

/* Number of files whose name ends so. */
static unsigned
count_files(struct fixture *f, const char *suffix)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    unsigned count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        count += len > strlen(suffix) && strcmp(entry->d_name + len - strlen(suffix), suffix) == 0;
    }
    closedir(dir);
    return count;
}

/* Path of the only segment. */
static void
segment_path(struct fixture *f, char *ret, size_t len)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;

    assert_non_null(dir);
    ret[0] = 0;
    while ((entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, ".spool") != NULL)
            snprintf(ret, len, "%s/%s", f->path, entry->d_name);
    }
    closedir(dir);
    assert_true(ret[0] != 0);
}

static void
assert_whole(const struct ef_spool *spool)
{
    for (size_t e = 0; e < spool->epoch_count; e++) {
        const struct ef_spool_epoch *epoch = &spool->epochs[e];
        struct ef_wire_reader *reader = NULL;
        assert_int_equal(ef_wire_reader_open(spool->keys, &reader, NULL), EF_OK);
        for (size_t i = 0; i < epoch->count; i++) {
            const struct ef_spool_batch *batch = &epoch->batches[epoch->head + i];
            struct ef_wire_header header;
            const ProtobufCMessage *message;
            assert_int_equal(ef_wire_decode(reader, EF_WIRE_BATCH, batch->data, batch->len, &header,
                                            &message, NULL),
                             EF_OK);
            assert_int_equal(header.sequence, batch->sequence);
            assert_int_equal(header.epoch, epoch->epoch);
        }
        ef_wire_reader_free(reader);
    }
}

static void
restart_finds_all_under_the_old_epoch(void **state)
{
    struct fixture *f = *state;
    uint64_t epoch;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];

    open_spool(f, f->path, 1u << 20);
    add_many(f, 20);
    apply(f, ef_spool_present(&f->spool)->epoch, 5);
    epoch = ef_spool_present(&f->spool)->epoch;
    memcpy(publisher, f->spool.publisher, sizeof(publisher));
    ef_spool_close(&f->spool);
    open_spool(f, f->path, 1u << 20);
    assert_int_equal(f->spool.epoch_count, 2);
    assert_int_equal(f->spool.epochs[0].epoch, epoch);
    assert_true(ef_spool_present(&f->spool)->epoch > epoch);
    assert_memory_equal(publisher, f->spool.publisher, sizeof(publisher));
    /* 1 to 5 are in the same file and come back; the collector acknowledges them again. */
    assert_int_equal(f->spool.epochs[0].last_sequence, 20);
    assert_int_equal(f->spool.epochs[0].fragments_published, 40);
    assert_int_equal(f->spool.epochs[0].samples_published, 200);
    assert_int_equal(f->spool.lost_count, 0);
    assert_whole(&f->spool);
    apply(f, epoch, 20);
    assert_int_equal(f->spool.epoch_count, 1);
    assert_int_equal(count_files(f, ".spool"), 0);
    assert_int_equal(f->spool.bytes_held, 0);
}

static void
kill_without_close_loses_nothing(void **state)
{
    struct fixture *f = *state;
    struct ef_spool killed;

    open_spool(f, f->path, 1u << 20);
    add_many(f, 20);
    killed = f->spool; /* never closed properly: only its descriptors go, with the lock */
    ef_spool_folder_free(killed.folder);
    killed.folder = NULL;
    open_spool(f, f->path, 1u << 20);
    assert_int_equal(f->spool.batches_held, 20);
    assert_whole(&f->spool);
    ef_spool_close(&killed);
}

/* Goal: wherever the file ends, all whole records before come back, and nothing is invented. */
static void
torn_end_is_cut_off_at_every_length(void **state)
{
    struct fixture *f = *state;
    char path[1400];
    struct stat st;
    uint8_t *whole;
    size_t len = 0;
    uint64_t held_before = 0;

    open_spool(f, f->path, 1u << 20);
    add_many(f, 4);
    ef_spool_close(&f->spool);
    segment_path(f, path, sizeof(path));
    whole = ef_test_read_file(path, &len);
    for (size_t cut = 0; cut <= len; cut += 7) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fwrite(whole, 1, cut, file);
        fclose(file);
        open_spool(f, f->path, 1u << 20);
        assert_int_equal(f->spool.lost_count, 0);
        assert_true(f->spool.batches_held >= held_before);
        held_before = f->spool.batches_held;
        assert_whole(&f->spool);
        if (f->spool.batches_held > 0) {
            assert_int_equal(stat(path, &st), 0);
            assert_true((size_t)st.st_size <= cut);
        }
        ef_spool_close(&f->spool);
    }
    assert_true(held_before >= 3);
    free(whole);
}

/* Goal: damage in the middle costs exactly the batch it hit, which is reported as lost. */
static void
damage_in_the_middle_is_reported_as_lost(void **state)
{
    struct fixture *f = *state;
    char path[1400];
    uint8_t *whole;
    size_t len = 0;

    open_spool(f, f->path, 1u << 20);
    add_many(f, 5);
    ef_spool_close(&f->spool);
    segment_path(f, path, sizeof(path));
    whole = ef_test_read_file(path, &len);
    for (size_t at = 40; at < len; at += 5) {
        uint64_t epoch;
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        whole[at] ^= 0x10;
        fwrite(whole, 1, len, file);
        whole[at] ^= 0x10;
        fclose(file);
        open_spool(f, f->path, 1u << 20);
        assert_int_equal(f->spool.batches_held, 4);
        assert_whole(&f->spool);
        /* The last one cannot be told from a torn end. */
        assert_int_equal(f->spool.lost_count, f->spool.epochs[0].last_sequence == 5 ? 1 : 0);
        epoch = f->spool.epochs[0].epoch;
        if (f->spool.lost_count == 1) {
            const struct ef_spool_lost *lost = &f->spool.epochs[0].lost;
            assert_int_equal(lost->fragments[lost->head], 0); /* not known */
            assert_in_range(lost->sequence[lost->head], 1, 4);
        }
        apply(f, epoch, 0);
        ef_spool_close(&f->spool);
    }
    free(whole);
}

static void
the_bound_forces_out_the_oldest_and_counts(void **state)
{
    struct fixture *f = *state;
    struct ef_spool_epoch *epoch;
    uint64_t number, lost, first;

    open_spool(f, f->path, 4096);
    add_many(f, 100);
    epoch = ef_spool_present(&f->spool);
    number = epoch->epoch;
    assert_true(f->spool.bytes_held <= 4096);
    lost = f->spool.lost_count;
    assert_int_equal(lost + f->spool.batches_held, 100);
    assert_int_equal(f->spool.fragments_lost, lost * 2);
    assert_int_equal(f->spool.samples_lost, lost * 10);
    first = ef_spool_first(epoch);
    assert_int_equal(first, lost + 1);
    /* The losses are known after a restart too. */
    ef_spool_close(&f->spool);
    open_spool(f, f->path, 4096);
    epoch = &f->spool.epochs[0];
    assert_int_equal(epoch->epoch, number);
    assert_int_equal(f->spool.lost_count, lost);
    assert_int_equal(f->spool.samples_lost, lost * 10);
    assert_int_equal(ef_spool_first(epoch), first);
    assert_int_equal(epoch->lost.samples[epoch->lost.head], 10);
    apply(f, number, first - 1);
    assert_int_equal(f->spool.lost_count, 0);
    assert_int_equal(count_files(f, ".loss"), 0);
    apply(f, number, 100);
    assert_int_equal(f->spool.epoch_count, 1);
}

static void
old_epochs_are_forced_out_first(void **state)
{
    struct fixture *f = *state;

    open_spool(f, f->path, 8192);
    add_many(f, 10);
    ef_spool_close(&f->spool);
    open_spool(f, f->path, 8192);
    add_many(f, 100);
    assert_int_equal(f->spool.epochs[0].count, 0);
    assert_int_equal(f->spool.epochs[0].lost.count, 10);
    ef_spool_close(&f->spool);
    open_spool(f, f->path, 8192);
    assert_int_equal(f->spool.epoch_count, 3);
    assert_int_equal(f->spool.epochs[0].lost.count, 10);
    assert_int_equal(f->spool.epochs[0].samples_published, 100);
    apply(f, f->spool.epochs[0].epoch, 10);
    assert_int_equal(f->spool.epoch_count, 2);
}

static void
losses_are_merged_above_their_bound(void **state)
{
    struct fixture *f = *state;
    uint64_t samples = 0, fragments = 0;
    struct ef_spool_epoch *epoch;

    open_spool(f, NULL, 1);
    add_many(f, EF_SPOOL_LOST_MAX + 500);
    epoch = ef_spool_present(&f->spool);
    assert_int_equal(f->spool.lost_count, EF_SPOOL_LOST_MAX);
    for (size_t i = 0; i < epoch->lost.count; i++) {
        samples += epoch->lost.samples[epoch->lost.head + i];
        fragments += epoch->lost.fragments[epoch->lost.head + i];
    }
    assert_int_equal(samples, 10 * (EF_SPOOL_LOST_MAX + 499));
    assert_int_equal(fragments, 2 * (EF_SPOOL_LOST_MAX + 499));
    assert_int_equal(epoch->lost.samples[epoch->lost.head], 10 * 500);
    /* A collector at 0 does not make us list the merged ones apart again. */
    apply(f, epoch->epoch, 0);
    assert_int_equal(f->spool.lost_count, EF_SPOOL_LOST_MAX);
    assert_int_equal(epoch->lost.samples[epoch->lost.head], 10 * 500);
}

static void
segments_go_when_acknowledged(void **state)
{
    struct fixture *f = *state;
    struct ef_spool_epoch *epoch;

    open_spool(f, f->path, 512u << 10); /* segments of 64 KiB */
    add_many(f, 1500);
    epoch = ef_spool_present(&f->spool);
    assert_in_range(count_files(f, ".spool"), 4, 12);
    apply(f, epoch->epoch, 1400);
    assert_in_range(count_files(f, ".spool"), 1, 2);
    apply(f, epoch->epoch, 1500);
    assert_int_equal(f->spool.batches_held, 0);
    ef_spool_close(&f->spool);
    assert_int_equal(count_files(f, ".spool"), 0);
}

static void
absurd_replies_do_no_harm(void **state)
{
    struct fixture *f = *state;
    struct ef_spool_resend resend = {
        .bytes_left = 1u << 20, .batches_left = 100, .sent_before.ns = INT64_MAX};
    uint64_t first[4] = {1, 5, UINT64_MAX, 3}, last[4] = {UINT64_MAX, 4, UINT64_MAX, 3};
    struct ef_spool_epoch *epoch;

    open_spool(f, f->path, 1u << 20);
    add_many(f, 10);
    epoch = ef_spool_present(&f->spool);
    while (ef_spool_next_to_send(&f->spool, (ef_mono_ns){1}) != NULL) {
    }
    ef_spool_apply(&f->spool, 12345, UINT64_MAX, first, last, 4, &resend);
    assert_int_equal(f->spool.batches_held, 10);
    ef_spool_apply(&f->spool, epoch->epoch, 2, first, last, 4, &resend);
    assert_int_equal(f->spool.batches_held, 8);
    assert_int_equal(resend.marked, 8);
    assert_int_equal(f->spool.lost_count, 2); /* asked for 1 and 2, which are gone */
    assert_int_equal(ef_spool_next_to_send(&f->spool, (ef_mono_ns){2})->sequence, 3);
    ef_spool_apply(&f->spool, epoch->epoch, UINT64_MAX, NULL, NULL, 0, &resend);
    assert_int_equal(f->spool.batches_held, 0);
    assert_int_equal(f->spool.lost_count, 0);
    assert_int_equal(epoch->last_sequence, 10);
}

static void
resending_keeps_budget_order_and_what_is_in_flight(void **state)
{
    struct fixture *f = *state;
    struct ef_spool_resend resend = {
        .bytes_left = 1u << 20, .batches_left = 3, .sent_before.ns = 50};
    uint64_t first = 1, last = 10;
    struct ef_spool_epoch *epoch;
    int64_t now = 10;

    open_spool(f, NULL, 1u << 20);
    add_many(f, 10);
    epoch = ef_spool_present(&f->spool);
    while (ef_spool_next_to_send(&f->spool, (ef_mono_ns){now}) != NULL)
        now += 10; /* 1 to 5 are sent at 10 to 50, the rest later */
    ef_spool_apply(&f->spool, epoch->epoch, 0, &first, &last, 1, &resend);
    assert_int_equal(resend.marked, 3);
    assert_true(resend.more);
    assert_int_equal(resend.again, 0);
    for (uint64_t i = 1; i <= 3; i++)
        assert_int_equal(ef_spool_next_to_send(&f->spool, (ef_mono_ns){200})->sequence, i);
    assert_null(ef_spool_next_to_send(&f->spool, (ef_mono_ns){200}));
    resend = (struct ef_spool_resend){.bytes_left = 10, .batches_left = 100, .sent_before.ns = 300};
    ef_spool_apply(&f->spool, epoch->epoch, 0, &first, &last, 1, &resend);
    assert_int_equal(resend.marked, 0); /* not even one fits */
    assert_int_equal(resend.again, 3);
    assert_true(resend.more);
}

static void
a_folder_is_locked(void **state)
{
    struct fixture *f = *state;
    struct ef_spool other;

    open_spool(f, f->path, 1u << 20);
    assert_int_equal(ef_spool_open(&other, f->path, 1u << 20, f->keys, &f->err), EF_ECONFLICT);
    assert_non_null(strstr(f->err.msg, "another publisher"));
}

/* Goal: the clock was set back by years; the new epoch is later than the old one all the same. */
static void
epoch_is_later_than_any_before(void **state)
{
    struct fixture *f = *state;
    char path[1400];
    FILE *file;

    open_spool(f, f->path, 1u << 20);
    ef_spool_close(&f->spool);
    snprintf(path, sizeof(path), "%s/09000000000000000000.loss", f->path);
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    open_spool(f, f->path, 1u << 20);
    assert_int_equal(ef_spool_present(&f->spool)->epoch, UINT64_C(9000000000000000001));
}

static void
foreign_files_are_left_alone(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"notes.txt", "1-1.spool", "00000000000000000001-x.spool",
                                        "00000000000000000005-00000000000000000001.spool~"};
    char path[1400];

    open_spool(f, f->path, 1u << 20);
    ef_spool_close(&f->spool);
    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        FILE *file;
        snprintf(path, sizeof(path), "%s/%s", f->path, names[i]);
        file = fopen(path, "w");
        assert_non_null(file);
        fclose(file);
    }
    open_spool(f, f->path, 1u << 20);
    add_many(f, 3);
    apply(f, ef_spool_present(&f->spool)->epoch, 3);
    ef_spool_close(&f->spool);
    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->path, names[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void
lost_publisher_id_is_found_in_a_segment(void **state)
{
    struct fixture *f = *state;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    char path[1400];

    open_spool(f, f->path, 1u << 20);
    add_many(f, 3);
    memcpy(publisher, f->spool.publisher, sizeof(publisher));
    ef_spool_close(&f->spool);
    snprintf(path, sizeof(path), "%s/publisher", f->path);
    assert_int_equal(unlink(path), 0);
    open_spool(f, f->path, 1u << 20);
    assert_memory_equal(publisher, f->spool.publisher, sizeof(publisher));
    assert_int_equal(f->spool.batches_held, 3);
}

/* Goal: a full disk (here: a file size limit) costs no batch while we live, and is counted. */
static void
full_disk_keeps_batches_in_memory(void **state)
{
    struct fixture *f = *state;
    struct rlimit before, small;
    uint64_t errors;

    open_spool(f, f->path, 1u << 20);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 2000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    add_many(f, 20);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    errors = f->spool.write_errors;
    assert_true(errors > 5);
    assert_int_equal(f->spool.batches_held, 20);
    assert_whole(&f->spool);
    add_many(f, 1); /* there is room again */
    assert_int_equal(f->spool.write_errors, errors);
    /* After a kill: what was not written is a gap, reported as lost. */
    ef_spool_close(&f->spool);
    open_spool(f, f->path, 1u << 20);
    assert_int_equal(f->spool.epochs[0].last_sequence, 21);
    assert_int_equal(f->spool.batches_held, 21 - errors);
    assert_int_equal(f->spool.lost_count, errors);
    assert_whole(&f->spool);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(restart_finds_all_under_the_old_epoch),
        TEST(kill_without_close_loses_nothing),
        TEST(torn_end_is_cut_off_at_every_length),
        TEST(damage_in_the_middle_is_reported_as_lost),
        TEST(the_bound_forces_out_the_oldest_and_counts),
        TEST(old_epochs_are_forced_out_first),
        TEST(losses_are_merged_above_their_bound),
        TEST(segments_go_when_acknowledged),
        TEST(absurd_replies_do_no_harm),
        TEST(resending_keeps_budget_order_and_what_is_in_flight),
        TEST(a_folder_is_locked),
        TEST(epoch_is_later_than_any_before),
        TEST(foreign_files_are_left_alone),
        TEST(lost_publisher_id_is_found_in_a_segment),
        TEST(full_disk_keeps_batches_in_memory),
    };

    return cmocka_run_group_tests_name("spool", tests, NULL, NULL);
}
