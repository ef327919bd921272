/*
 * What a storage backend provides. Private to storage/ and to the fault wrapper of the tests
 * (tests/support/fault_store.c): everybody else sees store.h only.
 *
 * Invariants: the front (store.c) has checked every argument before an operation is called, so a
 * backend sees ids above 0, known tiers, ascending records, non-empty ranges, text within its limit
 * and non-NULL ret pointers. After an operation on a batch failed, the front refuses to commit that
 * batch. The rules of store.h about threads, atomic batches and order are the backend's to keep.
 * All operations are required. `self` is what open gave, `batch` what batch_open gave.
 */
#ifndef STORAGE_STORE_OPS_H
#define STORAGE_STORE_OPS_H

#include "storage/store.h"

/* A batch holds at most this much; chosen: sixteen times the default write buffer. */
#define EF_STORE_BATCH_BYTES_MAX ((size_t)256 << 20)
#define EF_STORE_META_NAME_MAX 64 /* bytes without the final NUL */

struct ef_store_ops {
    const char *name;
    ef_rc (*open)(const char *path, const struct ef_store_options *options, void **ret_self,
                  struct ef_err *err);
    void (*close)(void *self);

    ef_rc (*batch_open)(void *self, void **ret_batch, struct ef_err *err);
    void (*batch_free)(void *batch);
    ef_rc (*put_version)(void *batch, const struct ef_store_version *version, struct ef_err *err);
    ef_rc (*put_series)(void *batch, const struct ef_store_series *series, struct ef_err *err);
    ef_rc (*put_functions)(void *batch, uint32_t version_id,
                           const struct ef_store_function *functions, size_t count,
                           struct ef_err *err);
    ef_rc (*put_stacks)(void *batch, uint32_t version_id, const struct ef_store_stack *stacks,
                        size_t count, struct ef_err *err);
    ef_rc (*put_block)(void *batch, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                       uint32_t part, const void *block, size_t len, struct ef_err *err);
    ef_rc (*put_totals)(void *batch, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                        uint32_t part, const struct ef_store_totals *totals, struct ef_err *err);
    ef_rc (*put_ack)(void *batch, const struct ef_store_ack *ack, struct ef_err *err);
    ef_rc (*put_meta)(void *batch, const char *name, const void *value, size_t len,
                      struct ef_err *err);
    ef_rc (*commit)(void *self, void *batch, struct ef_err *err);

    ef_rc (*each_version)(void *self, ef_store_version_fn fn, void *arg, struct ef_err *err);
    ef_rc (*each_series)(void *self, ef_store_series_fn fn, void *arg, struct ef_err *err);
    ef_rc (*each_function)(void *self, uint32_t version_id, ef_store_function_fn fn, void *arg,
                           struct ef_err *err);
    ef_rc (*each_stack)(void *self, uint32_t version_id, ef_store_stack_fn fn, void *arg,
                        struct ef_err *err);
    ef_rc (*fold)(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns, int64_t to_ns,
                  ef_store_block_fn fn, void *arg, struct ef_err *err);
    ef_rc (*fold_totals)(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns,
                         int64_t to_ns, ef_store_totals_fn fn, void *arg, struct ef_err *err);
    ef_rc (*series_span)(void *self, enum ef_tier tier, uint32_t series_id, int64_t *ret_first_ns,
                         int64_t *ret_last_ns, struct ef_err *err);
    ef_rc (*each_ack)(void *self, ef_store_ack_fn fn, void *arg, struct ef_err *err);
    ef_rc (*get_meta)(void *self, const char *name, struct ef_buf *out, struct ef_err *err);
    ef_rc (*expire)(void *self, enum ef_tier tier, int64_t before_ns, struct ef_err *err);
    ef_rc (*expire_acks)(void *self, int64_t before_ns, struct ef_err *err);
    ef_rc (*compact)(void *self, struct ef_err *err);
    /* Fills all but `blocks` and `samples`, which the front counts. *ret_stat begins as "no data".
     */
    void (*get_stat)(void *self, struct ef_store_stat *ret_stat);
};

/*
 * Makes a store of an already open backend: for wrappers that are not in backends.def. Takes self
 * (ops->close is called on it, also on failure).
 */
EF_MUST_USE ef_rc ef_store_open_ops(const struct ef_store_ops *ops, void *self,
                                    struct ef_store **ret_store, struct ef_err *err);

#define X(name) extern const struct ef_store_ops ef_store_##name##_ops;
#include "storage/backends.def"
#undef X

#endif
