/*
 * Keys and values as they lie on disk; storage/FORMAT.md describes them byte by byte.
 *
 * Invariants: keys compare by bytes in the order of (id, time, part), so numbers are big-endian and
 * signed times have their sign bit flipped. Every value begins with its format byte. Writers append
 * to a buffer (its `failed` flag says when it did not fit); readers check everything and give
 * EF_ECORRUPT, since a file may have been damaged. What a reader gives borrows the bytes it read.
 * Pure; any thread. Knows nothing of RocksDB.
 */
#ifndef STORAGE_ROCKSDB_RECORDS_H
#define STORAGE_ROCKSDB_RECORDS_H

#include "storage/store.h"

#define EF_RECORD_KEY_MAX 96 /* bytes; the longest key is 'n' and a name of 64 */

/* First byte of the keys in family "meta". */
#define EF_META_FORMAT 'f'
#define EF_META_NAME 'n'
#define EF_META_SERIES 's'
#define EF_META_TIER 't'
#define EF_META_VERSION 'v'

/* Kinds of runs in family "dict". */
#define EF_DICT_FUNCTIONS 'f'
#define EF_DICT_STACKS 's'

/* A key under construction, on the stack. */
struct ef_key {
    uint8_t bytes[EF_RECORD_KEY_MAX];
    size_t len;
};

/* Oldest and newest bucket start of a tier. */
struct ef_span {
    int64_t oldest_ns, newest_ns;
};

struct ef_key ef_key_meta(char kind);                 /* 'f' */
struct ef_key ef_key_meta_id(char kind, uint32_t id); /* 's', 't', 'v' */
struct ef_key ef_key_meta_name(const char *name);     /* at most EF_STORE_META_NAME_MAX bytes */
struct ef_key ef_key_dict(uint32_t version_id, char kind, uint32_t first_id);
struct ef_key ef_key_block(uint32_t series_id, int64_t bucket_ns, uint32_t part);
struct ef_key ef_key_totals(enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                            uint32_t part);
struct ef_key ef_key_ack(const uint8_t publisher[16], uint64_t epoch);
/* The smallest key that is greater than every key beginning with this one; for upper bounds. A key
 * of 0xff bytes only becomes empty: no bound. */
struct ef_key ef_key_after(const struct ef_key *prefix);

/* Parts of a key; false when its length is not that of such a key. */
bool ef_key_read_id(const uint8_t *key, size_t len, uint32_t *ret_id);
bool ef_key_read_dict(const uint8_t *key, size_t len, uint32_t *ret_first_id);
bool ef_key_read_block(const uint8_t *key, size_t len, uint32_t *ret_series_id,
                       int64_t *ret_bucket_ns, uint32_t *ret_part);
bool ef_key_read_totals(const uint8_t *key, size_t len, uint32_t *ret_series_id,
                        int64_t *ret_bucket_ns, uint32_t *ret_part);

void ef_record_write_version(struct ef_buf *out, const struct ef_store_version *version);
void ef_record_write_series(struct ef_buf *out, const struct ef_store_series *series);
void ef_record_write_totals(struct ef_buf *out, const struct ef_store_totals *totals);
void ef_record_write_ack(struct ef_buf *out, const struct ef_store_ack *ack);
void ef_record_write_span(struct ef_buf *out, const struct ef_span *span);
/* A run begins with its format byte; then records are appended. `last_id` is the id before this
 * record in the run, or the first id itself for the first record. */
void ef_record_begin_run(struct ef_buf *out);
void ef_record_write_function(struct ef_buf *out, uint32_t last_id,
                              const struct ef_store_function *function);
void ef_record_write_stack(struct ef_buf *out, uint32_t last_id,
                           const struct ef_store_stack *stack);

/* Readers set every field but the id, which is in the key. *ret_ack is not untouched on failure: it
 * is 8 kB, so it is filled in place. */
EF_MUST_USE ef_rc ef_record_read_version(const void *data, size_t len,
                                         struct ef_store_version *ret_version, struct ef_err *err);
EF_MUST_USE ef_rc ef_record_read_series(const void *data, size_t len,
                                        struct ef_store_series *ret_series, struct ef_err *err);
EF_MUST_USE ef_rc ef_record_read_totals(const void *data, size_t len,
                                        struct ef_store_totals *ret_totals, struct ef_err *err);
EF_MUST_USE ef_rc ef_record_read_span(const void *data, size_t len, struct ef_span *ret_span,
                                      struct ef_err *err);
EF_MUST_USE ef_rc ef_record_read_ack(const void *key, size_t key_len, const void *data, size_t len,
                                     struct ef_store_ack *ret_ack, struct ef_err *err);
/* Reading a run: begin, then one record after the other while ef_run_more says so. */
struct ef_run {
    struct ef_cursor cursor;
    uint32_t last_id;
    bool first;
};
EF_MUST_USE ef_rc ef_run_begin(struct ef_run *run, uint32_t first_id, const void *data, size_t len,
                               struct ef_err *err);
bool ef_run_more(const struct ef_run *run);
EF_MUST_USE ef_rc ef_run_function(struct ef_run *run, struct ef_store_function *ret_function,
                                  struct ef_err *err);
EF_MUST_USE ef_rc ef_run_stack(struct ef_run *run, struct ef_store_stack *ret_stack,
                               struct ef_err *err);

#endif
