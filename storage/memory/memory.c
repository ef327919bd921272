/*
 * The memory backend: the reference that tests compare others with, and a store for trials. Keeps
 * everything as plain structs in one ordered list; decides nothing but order. Holds no limit of its
 * own: what is put stays until it expires. Any thread. Iterations take references to their items
 * under the lock and call out without it, so each sees one moment, and a slow one holds up nobody.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "storage/store_ops.h"

#define LEVELS_MAX 20 /* of the skip list: a million items at 1/2 a level */

enum table {
    TABLE_VERSION,
    TABLE_SERIES,
    TABLE_FUNCTION,
    TABLE_STACK,
    TABLE_BLOCK,
    TABLE_TOTALS,
    TABLE_ACK,
    TABLE_META
};

/* Order of items: table, then the numbers, then the name (meta only, otherwise ""). */
struct key {
    enum table table;
    uint64_t a, b, c;
    const char *name;
};

struct item {
    struct key key;
    void *value; /* owned; a struct of store.h, or the bytes of a block or meta value */
    size_t len;  /* of block and meta */
    int level_count;
    atomic_uint refs;              /* the list or batch, and iterations */
    struct item *next_put;         /* in a batch: order of puts */
    struct item *next[LEVELS_MAX]; /* in the list */
};

struct memory {
    pthread_mutex_t lock; /* guards all below */
    struct item *heads[LEVELS_MAX];
    uint64_t random;
    uint64_t bytes;
};

/* Items are made by the puts, so that a commit allocates nothing and cannot fail. */
struct batch {
    struct item *first, **last;
};

/* Shifts signed time so that unsigned comparison keeps its order. */
static uint64_t
time_key(int64_t ns)
{
    return (uint64_t)ns + (UINT64_C(1) << 63);
}

static int64_t
key_time(uint64_t key)
{
    return (int64_t)(key - (UINT64_C(1) << 63));
}

static int
compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int
compare(const struct key *x, const struct key *y)
{
    int order = compare_u64(x->table, y->table);

    if (order == 0)
        order = compare_u64(x->a, y->a);
    if (order == 0)
        order = compare_u64(x->b, y->b);
    if (order == 0)
        order = compare_u64(x->c, y->c);
    return order != 0 ? order : strcmp(x->name, y->name);
}

/* First item not before the key; links[] become the places that point to it, level by level. */
static struct item *
seek(struct memory *self, const struct key *key, struct item **links[LEVELS_MAX])
{
    struct item **level = self->heads;

    for (int i = LEVELS_MAX - 1; i >= 0; i--) {
        while (level[i] != NULL && compare(&level[i]->key, key) < 0)
            level = level[i]->next;
        if (links != NULL)
            links[i] = &level[i];
    }
    return level[0];
}

static void
unref_item(struct item *item)
{
    if (atomic_fetch_sub(&item->refs, 1) != 1)
        return;
    free(item->value);
    free(item);
}

static void
remove_item(struct memory *self, struct item *item)
{
    struct item **links[LEVELS_MAX];

    seek(self, &item->key, links);
    for (int i = 0; i < item->level_count; i++)
        *links[i] = item->next[i];
    self->bytes -= sizeof(*item) + item->len;
    unref_item(item);
}

static int
random_levels(struct memory *self)
{
    int levels = 1;

    self->random ^= self->random << 13; /* xorshift64 (Marsaglia 2003) */
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    while (levels < LEVELS_MAX && (self->random >> levels & 1) != 0)
        levels++;
    return levels;
}

/* Takes the item; one with the same key is replaced. */
static void
insert_item(struct memory *self, struct item *item)
{
    struct item **links[LEVELS_MAX];
    struct item *old = seek(self, &item->key, links);

    if (old != NULL && compare(&old->key, &item->key) == 0) {
        remove_item(self, old);
        seek(self, &item->key, links);
    }
    item->level_count = random_levels(self);
    for (int i = 0; i < item->level_count; i++) {
        item->next[i] = *links[i];
        *links[i] = item;
    }
    self->bytes += sizeof(*item) + item->len;
}

static ef_rc
memory_open(const char *path, const struct ef_store_options *options, void **ret_self,
            struct ef_err *err)
{
    struct memory *self = calloc(1, sizeof(*self));

    (void)path;
    (void)options;
    if (self == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a store");
    pthread_mutex_init(&self->lock, NULL);
    self->random = 88172645463325252u; /* any number but 0 */
    *ret_self = self;
    return EF_OK;
}

static void
memory_close(void *arg)
{
    struct memory *self = arg;
    struct item *next;

    for (struct item *item = self->heads[0]; item != NULL; item = next) {
        next = item->next[0];
        unref_item(item);
    }
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static ef_rc
memory_batch_open(void *self, void **ret_batch, struct ef_err *err)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    (void)self;
    if (batch == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a batch");
    batch->last = &batch->first;
    *ret_batch = batch;
    return EF_OK;
}

static void
memory_batch_free(void *arg)
{
    struct batch *batch = arg;
    struct item *next;

    for (struct item *item = batch->first; item != NULL; item = next) {
        next = item->next_put;
        unref_item(item);
    }
    free(batch);
}

/*
 * Adds an item with a value of head_len bytes copied from `head`, followed by the texts, whose
 * pointers in the copy are set by the caller. Gives the value, or NULL without memory.
 */
static void *
add_item(struct batch *batch, struct key key, const void *head, size_t head_len, size_t text_len)
{
    struct item *item = calloc(1, sizeof(*item));
    char *value = malloc(head_len + text_len + 1);

    if (item == NULL || value == NULL) {
        free(item);
        free(value);
        return NULL;
    }
    if (head_len > 0)
        memcpy(value, head, head_len);
    atomic_init(&item->refs, 1);
    item->key = key;
    item->value = value;
    item->len = head_len + text_len;
    *batch->last = item;
    batch->last = &item->next_put;
    return value;
}

static ef_rc
no_memory(struct ef_err *err)
{
    return ef_err_set(err, EF_ENOMEM, "no memory for a record");
}

/* Copies a text behind others at *at. */
static const char *
keep_text(char **at, const char *text)
{
    size_t len = strlen(text) + 1;
    const char *kept = memcpy(*at, text, len);

    *at += len;
    return kept;
}

static ef_rc
memory_put_version(void *batch, const struct ef_store_version *version, struct ef_err *err)
{
    struct key key = {TABLE_VERSION, version->id, 0, 0, ""};
    size_t text_len =
        strlen(version->account) + strlen(version->worker) + strlen(version->version) + 3;
    struct ef_store_version *kept = add_item(batch, key, version, sizeof(*version), text_len);
    char *at;

    if (kept == NULL)
        return no_memory(err);
    at = (char *)(kept + 1);
    kept->account = keep_text(&at, version->account);
    kept->worker = keep_text(&at, version->worker);
    kept->version = keep_text(&at, version->version);
    return EF_OK;
}

static ef_rc
memory_put_series(void *batch, const struct ef_store_series *series, struct ef_err *err)
{
    struct key key = {TABLE_SERIES, series->id, 0, 0, ""};
    struct ef_store_series *kept =
        add_item(batch, key, series, sizeof(*series), strlen(series->region) + 1);
    char *at;

    if (kept == NULL)
        return no_memory(err);
    at = (char *)(kept + 1);
    kept->region = keep_text(&at, series->region);
    return EF_OK;
}

static ef_rc
memory_put_functions(void *batch, uint32_t version_id, const struct ef_store_function *functions,
                     size_t count, struct ef_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct ef_store_function *function = &functions[i];
        struct key key = {TABLE_FUNCTION, version_id, function->id, 0, ""};
        size_t text_len = strlen(function->name) + strlen(function->file) + 2;
        struct ef_store_function *kept =
            add_item(batch, key, function, sizeof(*function), text_len);
        char *at;

        if (kept == NULL)
            return no_memory(err);
        at = (char *)(kept + 1);
        kept->name = keep_text(&at, function->name);
        kept->file = keep_text(&at, function->file);
    }
    return EF_OK;
}

static ef_rc
memory_put_stacks(void *batch, uint32_t version_id, const struct ef_store_stack *stacks,
                  size_t count, struct ef_err *err)
{
    for (size_t i = 0; i < count; i++) {
        struct key key = {TABLE_STACK, version_id, stacks[i].id, 0, ""};
        if (add_item(batch, key, &stacks[i], sizeof(stacks[i]), 0) == NULL)
            return no_memory(err);
    }
    return EF_OK;
}

static struct key
bucket_key(enum table table, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
           uint32_t part)
{
    return (struct key){table, (uint64_t)tier << 32 | series_id, time_key(bucket_ns), part, ""};
}

static ef_rc
memory_put_block(void *batch, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                 uint32_t part, const void *block, size_t len, struct ef_err *err)
{
    struct key key = bucket_key(TABLE_BLOCK, tier, series_id, bucket_ns, part);

    return add_item(batch, key, block, len, 0) != NULL ? EF_OK : no_memory(err);
}

static ef_rc
memory_put_totals(void *batch, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                  uint32_t part, const struct ef_store_totals *totals, struct ef_err *err)
{
    struct key key = bucket_key(TABLE_TOTALS, tier, series_id, bucket_ns, part);

    return add_item(batch, key, totals, sizeof(*totals), 0) != NULL ? EF_OK : no_memory(err);
}

static ef_rc
memory_put_ack(void *batch, const struct ef_store_ack *ack, struct ef_err *err)
{
    struct ef_cursor publisher = ef_cursor_of(ack->publisher, sizeof(ack->publisher));
    struct key key = {TABLE_ACK, 0, 0, ack->epoch, ""};

    key.a = ef_cursor_be64(&publisher);
    key.b = ef_cursor_be64(&publisher);
    return add_item(batch, key, ack, sizeof(*ack), 0) != NULL ? EF_OK : no_memory(err);
}

static ef_rc
memory_put_meta(void *arg, const char *name, const void *value, size_t len, struct ef_err *err)
{
    struct batch *batch = arg;
    struct item **link = batch->last;
    struct key key = {TABLE_META, 0, 0, 0, ""};
    char *kept = add_item(batch, key, value, len, strlen(name) + 1);

    if (kept == NULL)
        return no_memory(err);
    (*link)->key.name = memcpy(kept + len, name, strlen(name) + 1);
    (*link)->len = len;
    return EF_OK;
}

static ef_rc
memory_commit(void *arg, void *batch_arg, struct ef_err *err)
{
    struct memory *self = arg;
    struct batch *batch = batch_arg;
    struct item *next;

    (void)err;
    pthread_mutex_lock(&self->lock);
    for (struct item *item = batch->first; item != NULL; item = next) {
        next = item->next_put;
        item->next_put = NULL;
        insert_item(self, item);
    }
    pthread_mutex_unlock(&self->lock);
    batch->first = NULL; /* moved to the store */
    batch->last = &batch->first;
    return EF_OK;
}

/* The caller's function; the table of the items says which. */
struct call {
    void *arg;
    union {
        ef_store_version_fn version_fn;
        ef_store_series_fn series_fn;
        ef_store_function_fn function_fn;
        ef_store_stack_fn stack_fn;
        ef_store_block_fn block_fn;
        ef_store_totals_fn totals_fn;
        ef_store_ack_fn ack_fn;
    };
};

static ef_rc
call_one(const struct call *call, const struct item *item)
{
    switch (item->key.table) {
    case TABLE_VERSION:
        return call->version_fn(call->arg, item->value);
    case TABLE_SERIES:
        return call->series_fn(call->arg, item->value);
    case TABLE_FUNCTION:
        return call->function_fn(call->arg, item->value);
    case TABLE_STACK:
        return call->stack_fn(call->arg, item->value);
    case TABLE_BLOCK:
        return call->block_fn(call->arg, key_time(item->key.b), (uint32_t)item->key.c, item->value,
                              item->len);
    case TABLE_TOTALS:
        return call->totals_fn(call->arg, key_time(item->key.b), (uint32_t)item->key.c,
                               item->value);
    case TABLE_ACK:
        return call->ack_fn(call->arg, item->value);
    case TABLE_META:
        break;
    }
    return EF_OK;
}

/* References to the items of [from, to), in order. */
struct items {
    struct item **list;
    size_t count, cap;
};

static bool
items_add(struct items *items, struct item *item)
{
    if (items->count == items->cap) {
        size_t cap = items->cap > 0 ? 2 * items->cap : 64;
        struct item **list = realloc(items->list, cap * sizeof(struct item *));
        if (list == NULL)
            return false;
        items->list = list;
        items->cap = cap;
    }
    atomic_fetch_add(&item->refs, 1);
    items->list[items->count++] = item;
    return true;
}

static bool
collect(struct memory *self, const struct key *from, const struct key *to, struct items *items)
{
    bool ok = true;

    pthread_mutex_lock(&self->lock);
    for (struct item *item = seek(self, from, NULL);
         ok && item != NULL && compare(&item->key, to) < 0; item = item->next[0])
        ok = items_add(items, item);
    pthread_mutex_unlock(&self->lock);
    return ok;
}

/* Calls for items in [from, to). */
static ef_rc
each(struct memory *self, struct key from, struct key to, const struct call *call,
     struct ef_err *err)
{
    struct items items = {NULL, 0, 0};
    ef_rc rc = EF_OK;

    if (!collect(self, &from, &to, &items))
        rc = ef_err_set(err, EF_ENOMEM, "no memory to read the store");
    for (size_t i = 0; rc == EF_OK && i < items.count; i++)
        rc = call_one(call, items.list[i]);
    for (size_t i = 0; i < items.count; i++)
        unref_item(items.list[i]);
    free(items.list);
    return rc;
}

static struct key
table_start(enum table table)
{
    return (struct key){table, 0, 0, 0, ""};
}

static ef_rc
memory_each_version(void *self, ef_store_version_fn fn, void *arg, struct ef_err *err)
{
    return each(self, table_start(TABLE_VERSION), table_start(TABLE_VERSION + 1),
                &(struct call){.arg = arg, .version_fn = fn}, err);
}

static ef_rc
memory_each_series(void *self, ef_store_series_fn fn, void *arg, struct ef_err *err)
{
    return each(self, table_start(TABLE_SERIES), table_start(TABLE_SERIES + 1),
                &(struct call){.arg = arg, .series_fn = fn}, err);
}

static ef_rc
memory_each_function(void *self, uint32_t version_id, ef_store_function_fn fn, void *arg,
                     struct ef_err *err)
{
    return each(self, (struct key){TABLE_FUNCTION, version_id, 0, 0, ""},
                (struct key){TABLE_FUNCTION, (uint64_t)version_id + 1, 0, 0, ""},
                &(struct call){.arg = arg, .function_fn = fn}, err);
}

static ef_rc
memory_each_stack(void *self, uint32_t version_id, ef_store_stack_fn fn, void *arg,
                  struct ef_err *err)
{
    return each(self, (struct key){TABLE_STACK, version_id, 0, 0, ""},
                (struct key){TABLE_STACK, (uint64_t)version_id + 1, 0, 0, ""},
                &(struct call){.arg = arg, .stack_fn = fn}, err);
}

static ef_rc
memory_fold(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns, int64_t to_ns,
            ef_store_block_fn fn, void *arg, struct ef_err *err)
{
    return each(self, bucket_key(TABLE_BLOCK, tier, series_id, from_ns, 0),
                bucket_key(TABLE_BLOCK, tier, series_id, to_ns, 0),
                &(struct call){.arg = arg, .block_fn = fn}, err);
}

static ef_rc
memory_fold_totals(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns,
                   int64_t to_ns, ef_store_totals_fn fn, void *arg, struct ef_err *err)
{
    return each(self, bucket_key(TABLE_TOTALS, tier, series_id, from_ns, 0),
                bucket_key(TABLE_TOTALS, tier, series_id, to_ns, 0),
                &(struct call){.arg = arg, .totals_fn = fn}, err);
}

static ef_rc
memory_series_span(void *arg, enum ef_tier tier, uint32_t series_id, int64_t *ret_first_ns,
                   int64_t *ret_last_ns, struct ef_err *err)
{
    struct memory *self = arg;
    struct key from = bucket_key(TABLE_TOTALS, tier, series_id, INT64_MIN, 0);
    const struct item *first, *last = NULL;
    int64_t first_ns = 0, last_ns = 0;

    pthread_mutex_lock(&self->lock);
    first = seek(self, &from, NULL);
    for (const struct item *item = first;
         item != NULL && item->key.table == TABLE_TOTALS && item->key.a == from.a;
         item = item->next[0])
        last = item;
    if (last != NULL) {
        first_ns = key_time(first->key.b);
        last_ns = key_time(last->key.b);
    }
    pthread_mutex_unlock(&self->lock);
    if (last == NULL)
        return ef_err_set(err, EF_ENOTFOUND, "series %u has no buckets", series_id);
    *ret_first_ns = first_ns;
    *ret_last_ns = last_ns;
    return EF_OK;
}

static ef_rc
memory_each_ack(void *self, ef_store_ack_fn fn, void *arg, struct ef_err *err)
{
    return each(self, table_start(TABLE_ACK), table_start(TABLE_ACK + 1),
                &(struct call){.arg = arg, .ack_fn = fn}, err);
}

static ef_rc
memory_get_meta(void *arg, const char *name, struct ef_buf *out, struct ef_err *err)
{
    struct memory *self = arg;
    struct key key = {TABLE_META, 0, 0, 0, name};
    const struct item *item;
    bool found;
    ef_rc rc = EF_OK;

    pthread_mutex_lock(&self->lock);
    item = seek(self, &key, NULL);
    found = item != NULL && compare(&item->key, &key) == 0;
    if (found) {
        ef_buf_append(out, item->value, item->len);
        rc = ef_buf_check(out, "stored value", err);
    }
    pthread_mutex_unlock(&self->lock);
    return found ? rc : ef_err_set(err, EF_ENOTFOUND, "the store has no value '%s'", name);
}

static bool
is_bucket_of(const struct item *item, enum ef_tier tier)
{
    return (item->key.table == TABLE_BLOCK || item->key.table == TABLE_TOTALS) &&
           item->key.a >> 32 == (uint64_t)tier;
}

static ef_rc
memory_expire(void *arg, enum ef_tier tier, int64_t before_ns, struct ef_err *err)
{
    struct memory *self = arg;
    struct item *next;

    (void)err;
    pthread_mutex_lock(&self->lock);
    for (struct item *item = self->heads[0]; item != NULL; item = next) {
        next = item->next[0];
        if (is_bucket_of(item, tier) && key_time(item->key.b) < before_ns)
            remove_item(self, item);
    }
    pthread_mutex_unlock(&self->lock);
    return EF_OK;
}

static ef_rc
memory_expire_acks(void *arg, int64_t before_ns, struct ef_err *err)
{
    struct memory *self = arg;
    struct item *next;

    (void)err;
    pthread_mutex_lock(&self->lock);
    for (struct item *item = self->heads[0]; item != NULL; item = next) {
        next = item->next[0];
        if (item->key.table == TABLE_ACK &&
            ((const struct ef_store_ack *)item->value)->updated_ns < before_ns)
            remove_item(self, item);
    }
    pthread_mutex_unlock(&self->lock);
    return EF_OK;
}

static ef_rc
memory_compact(void *self, struct ef_err *err)
{
    (void)self;
    (void)err;
    return EF_OK; /* nothing is ever stored twice here */
}

static void
count_item(const struct item *item, struct ef_store_stat *stat)
{
    switch (item->key.table) {
    case TABLE_FUNCTION:
    case TABLE_STACK:
        stat->definition_bytes += item->len;
        return;
    case TABLE_BLOCK:
        stat->block_bytes[item->key.a >> 32] += item->len;
        break;
    case TABLE_TOTALS:
        stat->totals_bytes += item->len;
        break;
    default:
        return;
    }
    if (key_time(item->key.b) < stat->oldest_bucket_ns)
        stat->oldest_bucket_ns = key_time(item->key.b);
    if (key_time(item->key.b) > stat->newest_bucket_ns)
        stat->newest_bucket_ns = key_time(item->key.b);
}

static void
memory_get_stat(void *arg, struct ef_store_stat *ret_stat)
{
    struct memory *self = arg;

    pthread_mutex_lock(&self->lock);
    ret_stat->memory_bytes = self->bytes;
    for (const struct item *item = self->heads[0]; item != NULL; item = item->next[0])
        count_item(item, ret_stat);
    pthread_mutex_unlock(&self->lock);
}

const struct ef_store_ops ef_store_memory_ops = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .batch_open = memory_batch_open,
    .batch_free = memory_batch_free,
    .put_version = memory_put_version,
    .put_series = memory_put_series,
    .put_functions = memory_put_functions,
    .put_stacks = memory_put_stacks,
    .put_block = memory_put_block,
    .put_totals = memory_put_totals,
    .put_ack = memory_put_ack,
    .put_meta = memory_put_meta,
    .commit = memory_commit,
    .each_version = memory_each_version,
    .each_series = memory_each_series,
    .each_function = memory_each_function,
    .each_stack = memory_each_stack,
    .fold = memory_fold,
    .fold_totals = memory_fold_totals,
    .series_span = memory_series_span,
    .each_ack = memory_each_ack,
    .get_meta = memory_get_meta,
    .expire = memory_expire,
    .expire_acks = memory_expire_acks,
    .compact = memory_compact,
    .get_stat = memory_get_stat,
};
