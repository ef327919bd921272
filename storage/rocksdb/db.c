/*
 * Decides how the database is opened, written, read, and brought back after a full disk. Must not
 * know what the records mean. Any thread; RocksDB runs a few threads of its own.
 *
 * Locks, in this order: write_lock (one writer), handle_lock (readers of the handle).
 */
#include "storage/rocksdb/db.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include <rocksdb/c.h>

#include "proto/base/time.h"
#include "storage/rocksdb/options.h"

#define FAMILIES_MAX 64       /* ours and those of other versions; chosen */
#define READERS_WAIT_S 10     /* chosen: as long as a query may take */
#define HEAL_PAUSE_S 60       /* chosen: between attempts to mend background errors */
#define ROOM_BYTES (1u << 20) /* chosen: manifest, options file, tables' metadata */
#define FOLDER_MODE 0750
#define COMPACT_BOTTOM_FORCE 2 /* rocksdb::BottommostLevelCompaction::kForce */

static const char *const family_names[] = {"meta", "dict", "totals", "ack", "b10"};
_Static_assert(EF_COUNT_OF(family_names) == EF_FAMILY_COUNT, "a name per family");

struct ef_db {
    char *path;
    struct ef_db_options options;
    pthread_mutex_t write_lock;
    pthread_rwlock_t handle_lock;

    rocksdb_t *handle; /* NULL: reopening failed; handle_lock */
    rocksdb_column_family_handle_t *opened[FAMILIES_MAX];
    size_t opened_count;
    rocksdb_column_family_handle_t *families[EF_FAMILY_COUNT]; /* point into opened */

    bool read_only;       /* opened so after reopening for writing failed; write_lock */
    bool wounded;         /* a write failed; write_lock */
    ef_mono_ns healed_at; /* last attempt to mend background errors; write_lock */

    /* Written since the store was opened: gives the mean size of what is not in a table yet. */
    _Atomic uint64_t entries[EF_FAMILY_COUNT], entry_bytes[EF_FAMILY_COUNT];
};

/* Names to open: "default", ours, and whatever else is there (RocksDB insists on all). */
struct names {
    const char *list[FAMILIES_MAX];
    size_t count;
    char **found; /* of rocksdb_list_column_families */
    size_t found_count;
};

const char *
ef_db_path(const struct ef_db *db)
{
    return db->path;
}

static bool
ends_with(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);

    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

static bool
starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/*
 * RocksDB's C API gives errors as text only (7.8.3). The words below are those of its Status class
 * and of strerror; anything unknown is EF_EIO.
 */
static ef_rc
code_of(const char *text)
{
    if (strstr(text, "No space left") != NULL || strstr(text, "quota exceeded") != NULL)
        return EF_ENOSPC;
    if (strstr(text, "lock hold by current process") != NULL ||
        (strstr(text, "/LOCK") != NULL && strstr(text, "Resource temporarily unavailable") != NULL))
        return EF_ECONFLICT;
    if (starts_with(text, "Corruption") || starts_with(text, "Invalid argument") ||
        strstr(text, "No such file") != NULL)
        return EF_ECORRUPT;
    if (strstr(text, "Cannot allocate memory") != NULL)
        return EF_ENOMEM;
    return EF_EIO;
}

/* Takes RocksDB's text. */
static ef_rc
fail(const struct ef_db *db, char *text, const char *doing, struct ef_err *err)
{
    ef_rc rc = code_of(text);

    if (rc == EF_ECONFLICT)
        ef_err_set(err, rc, "store '%s' is in use by another process (or opened twice)", db->path);
    else
        ef_err_set(err, rc, "store '%s': %s: %s", db->path, doing, text);
    rocksdb_free(text);
    return rc;
}

static int
add_name(struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->list[i], name) == 0)
            return 0;
    }
    if (names->count == FAMILIES_MAX)
        return -1;
    names->list[names->count++] = name;
    return 0;
}

static bool
database_exists(const struct ef_db *db)
{
    char current[4096];
    struct stat st;
    int len = snprintf(current, sizeof(current), "%s/CURRENT", db->path);

    return len > 0 && (size_t)len < sizeof(current) && stat(current, &st) == 0;
}

static ef_rc
find_names(const struct ef_db *db, struct names *names, struct ef_err *err)
{
    char *text = NULL;
    int bad = add_name(names, "default");

    for (size_t i = 0; i < EF_FAMILY_COUNT; i++)
        bad |= add_name(names, family_names[i]);
    if (!database_exists(db))
        return EF_OK;
    names->found =
        rocksdb_list_column_families(db->options.db, db->path, &names->found_count, &text);
    if (text != NULL) {
        names->found = NULL;
        return fail(db, text, "reading the list of column families", err);
    }
    for (size_t i = 0; i < names->found_count; i++)
        bad |= add_name(names, names->found[i]);
    if (bad != 0)
        return ef_err_set(err, EF_EUNSUP, "store '%s' has more than %d column families", db->path,
                          FAMILIES_MAX);
    return EF_OK;
}

static void
free_names(struct names *names)
{
    if (names->found != NULL)
        rocksdb_list_column_families_destroy(names->found, names->found_count);
}

static void
keep_families(struct ef_db *db, const struct names *names)
{
    db->opened_count = names->count;
    for (size_t i = 0; i < names->count; i++) {
        for (size_t k = 0; k < EF_FAMILY_COUNT; k++) {
            if (strcmp(names->list[i], family_names[k]) == 0)
                db->families[k] = db->opened[i];
        }
    }
}

static ef_rc
open_handle(struct ef_db *db, bool read_only, struct ef_err *err)
{
    const rocksdb_options_t *options[FAMILIES_MAX];
    struct names names = {.count = 0};
    char *text = NULL;
    ef_rc rc = find_names(db, &names, err);

    if (rc != EF_OK)
        goto out;
    for (size_t i = 0; i < names.count; i++)
        options[i] = db->options.db;
    if (read_only)
        db->handle = rocksdb_open_for_read_only_column_families(
            db->options.db, db->path, (int)names.count, names.list, options, db->opened, 0, &text);
    else
        db->handle = rocksdb_open_column_families(db->options.db, db->path, (int)names.count,
                                                  names.list, options, db->opened, &text);
    if (text != NULL) {
        db->handle = NULL;
        rc = fail(db, text, "opening", err);
        goto out;
    }
    keep_families(db, &names);
    db->read_only = read_only;
out:
    free_names(&names);
    return rc;
}

static void
close_handle(struct ef_db *db)
{
    if (db->handle == NULL)
        return;
    for (size_t i = 0; i < db->opened_count; i++)
        rocksdb_column_family_handle_destroy(db->opened[i]);
    rocksdb_close(db->handle);
    db->handle = NULL;
}

uint64_t
ef_db_folder_bytes(struct ef_db *db, const char *suffix)
{
    DIR *folder = opendir(db->path);
    uint64_t bytes = 0;
    struct stat st;

    if (folder == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (suffix != NULL && !ends_with(entry->d_name, suffix))
            continue;
        if (fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_blocks * 512; /* st_blocks is in units of 512 B (POSIX) */
    }
    closedir(folder);
    return bytes;
}

/*
 * Without CURRENT, RocksDB would make a new database and delete the old one's tables as not its
 * own. A file of data there means that CURRENT was lost.
 */
static ef_rc
check_not_headless(struct ef_db *db, struct ef_err *err)
{
    if (database_exists(db))
        return EF_OK;
    if (ef_db_folder_bytes(db, ".sst") + ef_db_folder_bytes(db, ".log") == 0)
        return EF_OK;
    return ef_err_set(err, EF_ECORRUPT,
                      "store '%s' has data files but its file '%s/CURRENT' is missing", db->path,
                      db->path);
}

static ef_rc
make_folder(const struct ef_db *db, struct ef_err *err)
{
    struct stat st;

    if (mkdir(db->path, FOLDER_MODE) != 0 && errno != EEXIST)
        return ef_err_errno(err, "cannot make the folder '%s' of the store", db->path);
    if (stat(db->path, &st) != 0)
        return ef_err_errno(err, "cannot look at the folder '%s' of the store", db->path);
    if (!S_ISDIR(st.st_mode))
        return ef_err_set(err, EF_EINVAL, "the store's path '%s' is not a folder", db->path);
    return EF_OK;
}

static ef_rc
write_format(struct ef_db *db, const struct ef_key *key, struct ef_err *err)
{
    const uint8_t value[4] = {EF_STORE_FORMAT & 0xff, EF_STORE_FORMAT >> 8 & 0xff, 0, 0};
    struct ef_writes writes;
    const struct ef_writes *list = &writes;
    ef_rc rc;

    ef_writes_init(&writes);
    ef_writes_add(&writes, EF_WRITE_PUT, EF_FAMILY_META, key, value, sizeof(value));
    rc = ef_writes_check(&writes, err);
    if (rc == EF_OK)
        rc = ef_db_write(db, &list, 1, err);
    ef_writes_fini(&writes);
    return rc;
}

/* Every write holds something in "meta", so a store without a format there is new or damaged. */
static ef_rc
format_is_missing(struct ef_db *db, const struct ef_key *key, struct ef_err *err)
{
    struct ef_key any = {.len = 0}, found;

    for (size_t i = 0; i < EF_FAMILY_COUNT; i++) {
        ef_rc rc = ef_db_edge(db, (enum ef_family)i, &any, &any, false, &found, err);
        if (rc == EF_OK)
            return ef_err_set(err, EF_ECORRUPT, "store '%s' has data but no format version",
                              db->path);
        if (rc != EF_ENOTFOUND)
            return rc;
    }
    return write_format(db, key, err);
}

static ef_rc
check_format(struct ef_db *db, struct ef_err *err)
{
    struct ef_key key = ef_key_meta(EF_META_FORMAT);
    struct ef_cursor cursor;
    struct ef_buf value;
    uint32_t format;
    ef_rc rc;

    ef_buf_init(&value, 64);
    rc = ef_db_get(db, EF_FAMILY_META, &key, &value, err);
    if (rc == EF_ENOTFOUND) {
        rc = format_is_missing(db, &key, err);
        goto out;
    }
    if (rc != EF_OK)
        goto out;
    cursor = ef_cursor_of(value.data, value.len);
    format = ef_cursor_le32(&cursor);
    if (cursor.failed || format == 0)
        rc = ef_err_set(err, EF_ECORRUPT, "store '%s': its format version is damaged", db->path);
    else if (format > EF_STORE_FORMAT)
        rc = ef_err_set(err, EF_EUNSUP,
                        "store '%s' has format %u, written by a newer version of Everflame; this "
                        "one reads up to format %u",
                        db->path, format, EF_STORE_FORMAT);
out:
    ef_buf_fini(&value);
    return rc;
}

ef_rc
ef_db_open(const char *path, const struct ef_store_options *options, struct ef_db **ret_db,
           struct ef_err *err)
{
    struct ef_db *db = calloc(1, sizeof(*db));
    ef_rc rc;

    if (db == NULL || (db->path = strdup(path)) == NULL) {
        free(db);
        return ef_err_set(err, EF_ENOMEM, "no memory to open the store '%s'", path);
    }
    pthread_mutex_init(&db->write_lock, NULL);
    pthread_rwlock_init(&db->handle_lock, NULL);
    ef_db_options_init(&db->options, options);
    rc = make_folder(db, err);
    if (rc == EF_OK)
        rc = check_not_headless(db, err);
    if (rc == EF_OK)
        rc = open_handle(db, false, err);
    if (rc == EF_OK)
        rc = check_format(db, err);
    if (rc != EF_OK) {
        ef_db_close(db);
        return rc;
    }
    *ret_db = db;
    return EF_OK;
}

void
ef_db_close(struct ef_db *db)
{
    bool can_flush;

    if (db == NULL)
        return;
    can_flush = db->handle != NULL && !db->read_only && !db->wounded;
    for (size_t i = 0; can_flush && i < EF_FAMILY_COUNT; i++)
        EF_IGNORE(ef_db_flush(db, (enum ef_family)i, NULL),
                  "what is not in tables is in the log and is read again at open");
    close_handle(db);
    ef_db_options_fini(&db->options);
    pthread_rwlock_destroy(&db->handle_lock);
    pthread_mutex_destroy(&db->write_lock);
    free(db->path);
    free(db);
}

void
ef_db_lock(struct ef_db *db)
{
    pthread_mutex_lock(&db->write_lock);
}

void
ef_db_unlock(struct ef_db *db)
{
    pthread_mutex_unlock(&db->write_lock);
}

/* Reopening writes the log's content as tables, so it needs about the log's size again. */
static ef_rc
check_room(struct ef_db *db, size_t batch_bytes, struct ef_err *err)
{
    uint64_t needed = ef_db_folder_bytes(db, ".log") + batch_bytes + ROOM_BYTES;
    struct statvfs fs;
    uint64_t left;

    if (statvfs(db->path, &fs) != 0)
        return ef_err_errno(err, "cannot look at the disk of the store '%s'", db->path);
    left = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (left < needed)
        return ef_err_set(err, EF_ENOSPC,
                          "store '%s': the disk is full: %" PRIu64
                          " kB left, writing goes on at %" PRIu64 " kB",
                          db->path, left / 1024, needed / 1024 + 1);
    return EF_OK;
}

/* Readers may be inside callbacks of their own, so waiting for them has an end. */
static ef_rc
lock_out_readers(struct ef_db *db, struct ef_err *err)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until); /* pthread_rwlock_timedwrlock knows this clock only */
    until.tv_sec += READERS_WAIT_S;
    if (pthread_rwlock_timedwrlock(&db->handle_lock, &until) == 0)
        return EF_OK;
    return ef_err_set(err, EF_EBUSY, "store '%s' cannot be reopened while it is being read",
                      db->path);
}

/*
 * When opening for writing fails (again no room), the database is opened for reading only, so that
 * queries still work; that replays the log in memory and writes nothing.
 */
static ef_rc
reopen(struct ef_db *db, struct ef_err *err)
{
    ef_rc rc = lock_out_readers(db, err);

    if (rc != EF_OK)
        return rc;
    close_handle(db);
    db->wounded = true;
    rc = open_handle(db, false, err);
    if (rc == EF_OK)
        db->wounded = false;
    else
        EF_IGNORE(open_handle(db, true, NULL), "the first error is the one to tell");
    pthread_rwlock_unlock(&db->handle_lock);
    return rc;
}

static bool
has_background_errors(struct ef_db *db)
{
    uint64_t count = 0;

    return rocksdb_property_int(db->handle, "rocksdb.background-errors", &count) == 0 && count > 0;
}

/*
 * A failed flush or compaction stops RocksDB's background work for good, though writes may go on
 * for a while: mend it, but not at each write, since not every such error can be mended.
 */
static bool
should_heal(struct ef_db *db)
{
    ef_mono_ns now = ef_mono_now();

    if (!has_background_errors(db))
        return false;
    if (db->healed_at.ns != 0 && ef_mono_since(db->healed_at, now).ns < HEAL_PAUSE_S * EF_NS_PER_S)
        return false;
    db->healed_at = now;
    return true;
}

static ef_rc
heal(struct ef_db *db, size_t batch_bytes, struct ef_err *err)
{
    bool must = db->handle == NULL || db->read_only || db->wounded;
    ef_rc rc;

    if (!must && !should_heal(db))
        return EF_OK;
    rc = check_room(db, batch_bytes, err);
    if (rc == EF_OK)
        rc = reopen(db, err);
    return must || db->wounded ? rc : EF_OK;
}

static void
add_write(struct ef_db *db, rocksdb_writebatch_t *batch, const struct ef_write *write)
{
    rocksdb_column_family_handle_t *family = db->families[write->family];
    const char *key = (const char *)write->key, *value = (const char *)write->value;

    switch (write->kind) {
    case EF_WRITE_PUT:
        rocksdb_writebatch_put_cf(batch, family, key, write->key_len, value, write->value_len);
        break;
    case EF_WRITE_DELETE:
        rocksdb_writebatch_delete_cf(batch, family, key, write->key_len);
        break;
    case EF_WRITE_DELETE_RANGE:
        rocksdb_writebatch_delete_range_cf(batch, family, key, write->key_len, value,
                                           write->value_len);
        break;
    }
}

static void
count_write(struct ef_db *db, const struct ef_write *write)
{
    atomic_fetch_add(&db->entries[write->family], 1);
    atomic_fetch_add(&db->entry_bytes[write->family], write->key_len + write->value_len);
}

/* write_lock is held, so the handle cannot change. */
static ef_rc
write_once(struct ef_db *db, const struct ef_writes *const *lists, size_t count, struct ef_err *err)
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    struct ef_write write;
    char *text = NULL;

    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; ef_writes_next(lists[i], &at, &write);)
            add_write(db, batch, &write);
    }
    rocksdb_write(db->handle, db->options.write, batch, &text);
    rocksdb_writebatch_destroy(batch);
    if (text != NULL)
        return fail(db, text, "writing", err);
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; ef_writes_next(lists[i], &at, &write);)
            count_write(db, &write);
    }
    return EF_OK;
}

ef_rc
ef_db_write(struct ef_db *db, const struct ef_writes *const *lists, size_t count,
            struct ef_err *err)
{
    size_t bytes = 0;
    ef_rc rc = EF_OK;

    for (size_t i = 0; i < count; i++)
        bytes += lists[i]->bytes.len;
    /* The second time round mends what made the first one fail, where that is possible. */
    for (int attempt = 0; attempt < 2; attempt++) {
        rc = heal(db, bytes, err);
        if (rc != EF_OK)
            return rc;
        rc = write_once(db, lists, count, err);
        if (rc == EF_OK)
            return EF_OK;
        db->wounded = true;
    }
    return rc;
}

/* Gives the handle for reading; end releases it. */
static ef_rc
begin(struct ef_db *db, struct ef_err *err)
{
    pthread_rwlock_rdlock(&db->handle_lock);
    if (db->handle != NULL)
        return EF_OK;
    pthread_rwlock_unlock(&db->handle_lock);
    return ef_err_set(err, EF_EIO,
                      "store '%s' is closed: opening it again failed and is tried at each write",
                      db->path);
}

static void
end(struct ef_db *db)
{
    pthread_rwlock_unlock(&db->handle_lock);
}

/* The options borrow the bounds, which must live as long as the iterator. */
static rocksdb_readoptions_t *
read_options(const struct ef_key *to)
{
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();

    if (to->len > 0)
        rocksdb_readoptions_set_iterate_upper_bound(options, (const char *)to->bytes, to->len);
    return options;
}

static ef_rc
iterate(rocksdb_iterator_t *it, ef_db_scan_fn fn, void *arg, struct ef_err *err)
{
    ef_rc rc = EF_OK;

    for (; rc == EF_OK && rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        size_t key_len, value_len;
        const uint8_t *key = (const uint8_t *)rocksdb_iter_key(it, &key_len);
        const uint8_t *value = (const uint8_t *)rocksdb_iter_value(it, &value_len);
        rc = fn(arg, key, key_len, value, value_len, err);
        if (rc != EF_OK)
            break;
    }
    return rc;
}

ef_rc
ef_db_scan(struct ef_db *db, enum ef_family family, const struct ef_key *from,
           const struct ef_key *to, ef_db_scan_fn fn, void *arg, struct ef_err *err)
{
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *it;
    char *text = NULL;
    ef_rc rc = begin(db, err);

    if (rc != EF_OK)
        return rc;
    options = read_options(to);
    it = rocksdb_create_iterator_cf(db->handle, options, db->families[family]);
    rocksdb_iter_seek(it, (const char *)from->bytes, from->len);
    rc = iterate(it, fn, arg, err);
    if (rc == EF_OK)
        rocksdb_iter_get_error(it, &text);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(options);
    end(db);
    return text == NULL ? rc : fail(db, text, "reading", err);
}

static int
compare(const uint8_t *a, size_t a_len, const struct ef_key *b)
{
    int order = memcmp(a, b->bytes, a_len < b->len ? a_len : b->len);

    if (order != 0)
        return order;
    return a_len < b->len ? -1 : a_len > b->len;
}

/* Copies the key under the iterator if it is one of ours and not before `from`. */
static ef_rc
edge_key(const struct ef_db *db, rocksdb_iterator_t *it, const struct ef_key *from,
         struct ef_key *ret_key, struct ef_err *err)
{
    size_t len;
    const uint8_t *key = (const uint8_t *)rocksdb_iter_key(it, &len);

    if (len > EF_RECORD_KEY_MAX)
        return ef_err_set(err, EF_ECORRUPT, "store '%s': a key of %zu bytes", db->path, len);
    if (compare(key, len, from) < 0)
        return EF_ENOTFOUND;
    memcpy(ret_key->bytes, key, len);
    ret_key->len = len;
    return EF_OK;
}

ef_rc
ef_db_edge(struct ef_db *db, enum ef_family family, const struct ef_key *from,
           const struct ef_key *to, bool last, struct ef_key *ret_key, struct ef_err *err)
{
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *it;
    char *text = NULL;
    ef_rc rc = begin(db, err);

    if (rc != EF_OK)
        return rc;
    options = read_options(to);
    it = rocksdb_create_iterator_cf(db->handle, options, db->families[family]);
    if (last)
        rocksdb_iter_seek_to_last(it); /* the last one before the upper bound */
    else
        rocksdb_iter_seek(it, (const char *)from->bytes, from->len);
    rc = rocksdb_iter_valid(it) ? edge_key(db, it, from, ret_key, err) : EF_ENOTFOUND;
    rocksdb_iter_get_error(it, &text);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(options);
    end(db);
    return text == NULL ? rc : fail(db, text, "reading", err);
}

struct get {
    struct ef_buf *out;
    bool found;
};

static ef_rc
take_value(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
           struct ef_err *err)
{
    struct get *get = arg;

    (void)key;
    (void)key_len;
    get->found = true;
    ef_buf_append(get->out, value, value_len);
    return ef_buf_check(get->out, "stored value", err);
}

ef_rc
ef_db_get(struct ef_db *db, enum ef_family family, const struct ef_key *key, struct ef_buf *out,
          struct ef_err *err)
{
    struct get get = {out, false};
    struct ef_key to = *key;
    ef_rc rc;

    to.bytes[to.len++] = 0; /* the next key in order after `key` itself */
    rc = ef_db_scan(db, family, key, &to, take_value, &get, err);
    if (rc == EF_OK && !get.found)
        rc = EF_ENOTFOUND;
    return rc;
}

ef_rc
ef_db_flush(struct ef_db *db, enum ef_family family, struct ef_err *err)
{
    char *text = NULL;
    ef_rc rc = begin(db, err);

    if (rc != EF_OK)
        return rc;
    rocksdb_flush_cf(db->handle, db->options.flush, db->families[family], &text);
    end(db);
    return text == NULL ? EF_OK : fail(db, text, "writing tables", err);
}

void
ef_db_suggest_compact(struct ef_db *db, enum ef_family family, const struct ef_key *from,
                      const struct ef_key *to)
{
    char *text = NULL;

    if (begin(db, NULL) != EF_OK)
        return;
    rocksdb_suggest_compact_range_cf(db->handle, db->families[family], (const char *)from->bytes,
                                     from->len, (const char *)to->bytes, to->len, &text);
    end(db);
    rocksdb_free(text);
}

static void
compact_family(struct ef_db *db, enum ef_family family)
{
    rocksdb_compactoptions_t *options = rocksdb_compactoptions_create();

    rocksdb_compactoptions_set_exclusive_manual_compaction(options, 0);
    rocksdb_compactoptions_set_bottommost_level_compaction(options, COMPACT_BOTTOM_FORCE);
    rocksdb_compact_range_cf_opt(db->handle, db->families[family], options, NULL, 0, NULL, 0);
    rocksdb_compactoptions_destroy(options);
}

ef_rc
ef_db_compact(struct ef_db *db, struct ef_err *err)
{
    bool bad;
    ef_rc rc = EF_OK;

    for (size_t i = 0; rc == EF_OK && i < EF_FAMILY_COUNT; i++)
        rc = ef_db_flush(db, (enum ef_family)i, err);
    if (rc == EF_OK)
        rc = begin(db, err);
    if (rc != EF_OK)
        return rc;
    for (size_t i = 0; i < EF_FAMILY_COUNT; i++)
        compact_family(db, (enum ef_family)i);
    bad = has_background_errors(db); /* rocksdb_compact_range_cf_opt gives no error */
    end(db);
    if (bad)
        return ef_err_set(err, EF_EIO, "store '%s': compaction failed (no room?)", db->path);
    return EF_OK;
}

uint64_t
ef_db_property(struct ef_db *db, enum ef_family family, const char *name)
{
    uint64_t value = 0;

    if (begin(db, NULL) != EF_OK)
        return 0;
    if (rocksdb_property_int_cf(db->handle, db->families[family], name, &value) != 0)
        value = 0;
    end(db);
    return value;
}

/*
 * RocksDB tells how many entries its memtables hold and how much memory (in arenas of 256 KiB), but
 * not their bytes: so entries × their mean size, which is exact until the first table is written.
 */
static uint64_t
unwritten_bytes(struct ef_db *db, enum ef_family family)
{
    uint64_t written = atomic_load(&db->entries[family]);
    uint64_t waiting = ef_db_property(db, family, "rocksdb.num-entries-active-mem-table") +
                       ef_db_property(db, family, "rocksdb.num-entries-imm-mem-tables");

    if (written == 0)
        return 0;
    return (uint64_t)((double)waiting * (double)atomic_load(&db->entry_bytes[family]) /
                      (double)written);
}

uint64_t
ef_db_family_bytes(struct ef_db *db, enum ef_family family)
{
    return ef_db_property(db, family, "rocksdb.live-sst-files-size") + unwritten_bytes(db, family);
}
