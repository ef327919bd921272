/*
 * One open RocksDB database that can be closed and opened again under its readers.
 *
 * Invariants: the handle and the family handles change only under handle_lock held for writing, and
 * only by whom holds write_lock; who reads them holds handle_lock for reading, or write_lock.
 * Iterators live inside one call: RocksDB aborts when it is closed with a live one. After a failed
 * write nothing is written until the database was reopened ("wounded"): its log may end in half a
 * record. The C API has no Resume, so reopening is the only way back from a full disk.
 */
#ifndef STORAGE_ROCKSDB_DB_H
#define STORAGE_ROCKSDB_DB_H

#include "storage/rocksdb/records.h"
#include "storage/rocksdb/writes.h"

struct ef_db;

/* Makes the folder when absent. EF_ECONFLICT: in use; EF_ECORRUPT: damaged, the text names it;
 * EF_EUNSUP: written by a newer version. */
EF_MUST_USE ef_rc ef_db_open(const char *path, const struct ef_store_options *options,
                             struct ef_db **ret_db, struct ef_err *err);
/* Flushes. NULL is fine. */
void ef_db_close(struct ef_db *db);

/* One writer at a time: between lock and unlock nobody else writes or reopens. */
void ef_db_lock(struct ef_db *db);
void ef_db_unlock(struct ef_db *db);
/* Writes all lists as one atomic batch; the caller holds the lock. Reopens first after a failed
 * write, when there is room. */
EF_MUST_USE ef_rc ef_db_write(struct ef_db *db, const struct ef_writes *const *lists, size_t count,
                              struct ef_err *err);

/* Borrows key and value. What it returns other than EF_OK ends the scan. */
typedef ef_rc (*ef_db_scan_fn)(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value,
                               size_t value_len, struct ef_err *err);
/* Keys in [from, to), ascending; an empty `to` is no bound. Any thread, also during a write. */
EF_MUST_USE ef_rc ef_db_scan(struct ef_db *db, enum ef_family family, const struct ef_key *from,
                             const struct ef_key *to, ef_db_scan_fn fn, void *arg,
                             struct ef_err *err);
/* First or last key in [from, to); EF_ENOTFOUND without text when there is none. */
EF_MUST_USE ef_rc ef_db_edge(struct ef_db *db, enum ef_family family, const struct ef_key *from,
                             const struct ef_key *to, bool last, struct ef_key *ret_key,
                             struct ef_err *err);
/* Appends the value; EF_ENOTFOUND without text when the key is absent. */
EF_MUST_USE ef_rc ef_db_get(struct ef_db *db, enum ef_family family, const struct ef_key *key,
                            struct ef_buf *out, struct ef_err *err);

/* Writes buffers to table files. */
EF_MUST_USE ef_rc ef_db_flush(struct ef_db *db, enum ef_family family, struct ef_err *err);
/* Tells RocksDB that [from, to) is worth compacting soon; never fails, it is a hint. */
void ef_db_suggest_compact(struct ef_db *db, enum ef_family family, const struct ef_key *from,
                           const struct ef_key *to);
EF_MUST_USE ef_rc ef_db_compact(struct ef_db *db, struct ef_err *err);
/* Sum of a RocksDB number over a family; 0 when unknown. */
uint64_t ef_db_property(struct ef_db *db, enum ef_family family, const char *name);
/* Keys and values of a family: its table files, and what waits in memory to be written to one
 * (uncompressed, estimated). */
uint64_t ef_db_family_bytes(struct ef_db *db, enum ef_family family);
/* What the files of the folder occupy on disk; `suffix` NULL = all files. */
uint64_t ef_db_folder_bytes(struct ef_db *db, const char *suffix);
const char *ef_db_path(const struct ef_db *db);

#endif
