/*
 * A list of puts and deletes, kept as our own bytes until they are written.
 *
 * Why not a rocksdb_writebatch_t from the start: that needs column family handles, which change
 * when the database is reopened after a full disk, while a batch must outlive that. One thread at a
 * time.
 */
#ifndef STORAGE_ROCKSDB_WRITES_H
#define STORAGE_ROCKSDB_WRITES_H

#include "storage/rocksdb/records.h"

enum ef_family {
    EF_FAMILY_META,
    EF_FAMILY_DICT,
    EF_FAMILY_TOTALS,
    EF_FAMILY_ACK,
    EF_FAMILY_BLOCKS, /* + tier */
    EF_FAMILY_COUNT = EF_FAMILY_BLOCKS + EF_TIER_COUNT
};

enum ef_write_kind { EF_WRITE_PUT, EF_WRITE_DELETE, EF_WRITE_DELETE_RANGE };

struct ef_write {
    enum ef_write_kind kind;
    enum ef_family family;
    const uint8_t *key;
    size_t key_len;
    const uint8_t *value; /* of DELETE_RANGE: the end, which is not deleted */
    size_t value_len;
};

struct ef_writes {
    struct ef_buf bytes;
};

void ef_writes_init(struct ef_writes *writes);
void ef_writes_fini(struct ef_writes *writes);
/* Appends; copies. A list that became too large or found no memory has bytes.failed set, and
 * nothing of the failed write in it. */
void ef_writes_add(struct ef_writes *writes, enum ef_write_kind kind, enum ef_family family,
                   const struct ef_key *key, const void *value, size_t value_len);
/* The same with a value that was written into a buffer: where the buffer failed, the list fails. */
void ef_writes_put(struct ef_writes *writes, enum ef_family family, const struct ef_key *key,
                   const struct ef_buf *value);
/* EF_ELIMIT when an append failed. */
EF_MUST_USE ef_rc ef_writes_check(const struct ef_writes *writes, struct ef_err *err);
/* Iterates: for (size_t at = 0; ef_writes_next(writes, &at, &write);) */
bool ef_writes_next(const struct ef_writes *writes, size_t *at, struct ef_write *ret_write);

#endif
