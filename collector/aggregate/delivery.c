/*
 * Decides which sequences of which epochs are applied. Runs under the aggregate's lock;
 * ef_delivery_recall without it.
 */
#include "collector/aggregate/internal.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_NS (INT64_C(3600) * EF_NS_PER_S) /* silent epochs may leave memory; chosen */

static uint64_t
epoch_key(const uint8_t publisher[16], uint64_t epoch)
{
    uint8_t key[24];

    memcpy(key, publisher, 16);
    memcpy(key + 16, &epoch, 8);
    return ef_hash(key, sizeof(key));
}

static uint64_t
rehash(uint64_t hash)
{
    return hash * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static struct ef_publisher_view *
find_publisher(const struct ef_delivery *delivery, const uint8_t id[16], uint64_t *hash)
{
    const uint64_t *slot;

    for (*hash = ef_hash(id, 16); (slot = ef_map_get(&delivery->publisher_of, *hash)) != NULL;
         *hash = rehash(*hash)) {
        struct ef_publisher_view *found = (struct ef_publisher_view *)(uintptr_t)*slot;
        if (memcmp(found->id, id, 16) == 0)
            return found;
    }
    return NULL;
}

static struct ef_epoch *
find_epoch(const struct ef_delivery *delivery, const uint8_t publisher[16], uint64_t epoch,
           uint64_t *hash)
{
    const uint64_t *slot;

    for (*hash = epoch_key(publisher, epoch);
         (slot = ef_map_get(&delivery->epoch_of, *hash)) != NULL; *hash = rehash(*hash)) {
        struct ef_epoch *found = (struct ef_epoch *)(uintptr_t)*slot;
        if (found->epoch == epoch && memcmp(found->publisher->id, publisher, 16) == 0)
            return found;
    }
    return NULL;
}

struct ef_epoch *
ef_delivery_find(const struct ef_aggregate *aggregate, const uint8_t publisher[16], uint64_t epoch)
{
    uint64_t hash;

    return find_epoch(&aggregate->delivery, publisher, epoch, &hash);
}

/* ---- forgetting ---- */

static void
free_publisher(struct ef_publisher_view *publisher)
{
    free(publisher->targets);
    free(publisher);
}

static void
free_epoch(struct ef_epoch *epoch)
{
    free(epoch->above);
    free(epoch);
}

static void
forget_publisher(struct ef_aggregate *aggregate, uint32_t index)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_publisher_view *publisher = delivery->publishers[index];
    uint64_t hash;

    EF_ASSERT(find_publisher(delivery, publisher->id, &hash) == publisher);
    ef_map_remove(&delivery->publisher_of, hash);
    delivery->publishers[index] = delivery->publishers[--delivery->publisher_count];
    aggregate->delivery_bytes -= sizeof(*publisher) + publisher->targets_len;
    free_publisher(publisher);
}

static void
forget_epoch(struct ef_aggregate *aggregate, uint32_t index)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_epoch *epoch = delivery->epochs[index];
    uint64_t hash;

    EF_ASSERT(find_epoch(delivery, epoch->publisher->id, epoch->epoch, &hash) == epoch);
    ef_map_remove(&delivery->epoch_of, hash);
    delivery->epochs[index] = delivery->epochs[--delivery->epoch_count];
    epoch->publisher->epoch_count--;
    aggregate->delivery_bytes -= sizeof(*epoch) + epoch->above_cap * sizeof(*epoch->above);
    free_epoch(epoch);
    delivery->forgotten = true;
}

/* Makes room for one epoch: the one that is silent longest, and is on disk as it is. */
static bool
forget_oldest_epoch(struct ef_aggregate *aggregate, int64_t now_ns)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    uint32_t oldest = UINT32_MAX;

    for (uint32_t i = 0; i < delivery->epoch_count; i++) {
        const struct ef_epoch *epoch = delivery->epochs[i];
        if (!epoch->dirty && !epoch->frozen && epoch->parked_count == 0 &&
            epoch->updated_ns < now_ns - IDLE_NS && epoch->reported_ns < now_ns - IDLE_NS &&
            (oldest == UINT32_MAX || epoch->updated_ns < delivery->epochs[oldest]->updated_ns))
            oldest = i;
    }
    if (oldest == UINT32_MAX)
        return false;
    forget_epoch(aggregate, oldest);
    return true;
}

static bool
forget_idle_publisher(struct ef_aggregate *aggregate, int64_t now_ns)
{
    struct ef_delivery *delivery = &aggregate->delivery;

    for (uint32_t i = 0; i < delivery->publisher_count; i++) {
        if (delivery->publishers[i]->epoch_count == 0 &&
            delivery->publishers[i]->seen_ns < now_ns - IDLE_NS) {
            forget_publisher(aggregate, i);
            return true;
        }
    }
    return false;
}

/* ---- making ---- */

static bool
put_pointer(struct ef_aggregate *aggregate, struct ef_map *map, uint64_t hash, const void *pointer)
{
    size_t before = ef_map_bytes(map);
    bool is_new;
    uint64_t *slot = ef_map_upsert(map, hash, &is_new);

    if (slot == NULL)
        return false;
    *slot = (uint64_t)(uintptr_t)pointer;
    aggregate->delivery_bytes += ef_map_bytes(map) - before;
    return true;
}

static struct ef_publisher_view *
add_publisher(struct ef_aggregate *aggregate, const uint8_t id[16], uint64_t hash)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_publisher_view *publisher = calloc(1, sizeof(*publisher));
    void *array = delivery->publishers;

    if (publisher == NULL ||
        !ef_agg_grow_u32(&array, &delivery->publisher_cap, delivery->publisher_count + 1,
                         sizeof(struct ef_publisher_view *)))
        goto failed;
    delivery->publishers = array;
    if (!put_pointer(aggregate, &delivery->publisher_of, hash, publisher))
        goto failed;
    memcpy(publisher->id, id, 16);
    delivery->publishers[delivery->publisher_count++] = publisher;
    aggregate->delivery_bytes += sizeof(*publisher);
    return publisher;
failed:
    free(publisher);
    return NULL;
}

struct ef_publisher_view *
ef_delivery_publisher(struct ef_aggregate *aggregate, const uint8_t id[16], int64_t now_ns)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    uint64_t hash;
    struct ef_publisher_view *publisher = find_publisher(delivery, id, &hash);

    if (publisher != NULL)
        return publisher;
    if (delivery->publisher_count >= aggregate->options.publishers_max &&
        !forget_idle_publisher(aggregate, now_ns))
        return NULL;
    return add_publisher(aggregate, id, hash);
}

static struct ef_epoch *
add_epoch(struct ef_aggregate *aggregate, struct ef_publisher_view *publisher, uint64_t number,
          uint64_t hash)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_epoch *epoch = calloc(1, sizeof(*epoch));
    void *array = delivery->epochs;

    if (epoch == NULL || !ef_agg_grow_u32(&array, &delivery->epoch_cap, delivery->epoch_count + 1,
                                          sizeof(struct ef_epoch *)))
        goto failed;
    delivery->epochs = array;
    if (!put_pointer(aggregate, &delivery->epoch_of, hash, epoch))
        goto failed;
    epoch->publisher = publisher;
    epoch->epoch = number;
    publisher->epoch_count++;
    if (number > publisher->epoch)
        publisher->epoch = number;
    delivery->epochs[delivery->epoch_count++] = epoch;
    aggregate->delivery_bytes += sizeof(*epoch) + EF_MALLOC_OVERHEAD + sizeof(struct ef_epoch *);
    return epoch;
failed:
    free(epoch);
    return NULL;
}

ef_rc
ef_delivery_epoch(struct ef_aggregate *aggregate, const uint8_t publisher_id[16], uint64_t number,
                  bool recalled, int64_t now_ns, struct ef_epoch **ret_epoch, struct ef_err *err)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_publisher_view *publisher;
    uint64_t hash;
    struct ef_epoch *epoch = find_epoch(delivery, publisher_id, number, &hash);

    if (epoch == NULL && delivery->forgotten && !recalled)
        return EF_ENOTFOUND;
    if (epoch == NULL) {
        if (delivery->epoch_count >= aggregate->options.publishers_max &&
            !forget_oldest_epoch(aggregate, now_ns))
            return ef_err_set(err, EF_EBUSY, "more than %u publishers or lives of publishers",
                              aggregate->options.publishers_max);
        publisher = ef_delivery_publisher(aggregate, publisher_id, now_ns);
        if (publisher != NULL)
            epoch = add_epoch(aggregate, publisher, number, hash);
    }
    if (epoch == NULL)
        return ef_err_set(err, EF_EBUSY, "no room for another publisher");
    *ret_epoch = epoch;
    return EF_OK;
}

/* ---- from the store ---- */

static bool
fill_epoch(struct ef_aggregate *aggregate, struct ef_epoch *epoch, const struct ef_store_ack *ack)
{
    uint32_t count = ack->above_count < EF_ACK_ABOVE_MAX ? ack->above_count : EF_ACK_ABOVE_MAX;

    if (count > 0) {
        epoch->above = malloc(count * sizeof(*epoch->above));
        if (epoch->above == NULL)
            return false;
        memcpy(epoch->above, ack->above, count * sizeof(*epoch->above));
        aggregate->delivery_bytes += count * sizeof(*epoch->above);
    }
    epoch->above_count = epoch->above_cap = count;
    epoch->contiguous = epoch->durable = ack->contiguous;
    epoch->fragments_stored = ack->fragments_stored;
    epoch->samples_stored = ack->samples_stored;
    epoch->fragments_lost = ack->fragments_lost;
    epoch->samples_lost = ack->samples_lost;
    epoch->batches_duplicate = ack->batches_duplicate;
    epoch->samples_duplicate = ack->samples_duplicate;
    epoch->samples_late = ack->samples_late;
    epoch->updated_ns = ack->updated_ns;
    return true;
}

static ef_rc
load_ack(struct ef_aggregate *aggregate, const struct ef_store_ack *ack, int64_t now_ns,
         struct ef_err *err)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_epoch *epoch;
    uint64_t hash;
    ef_rc rc;

    if (find_epoch(delivery, ack->publisher, ack->epoch, &hash) != NULL)
        return EF_OK;
    rc = ef_delivery_epoch(aggregate, ack->publisher, ack->epoch, true, now_ns, &epoch, err);
    if (rc != EF_OK)
        return rc;
    if (!fill_epoch(aggregate, epoch, ack))
        return ef_err_set(err, EF_ENOMEM, "no memory for a publisher");
    if (epoch->publisher->name[0] == '\0')
        memcpy(epoch->publisher->name, ack->name, sizeof(epoch->publisher->name));
    epoch->publisher->name[EF_STORE_NAME_MAX - 1] = '\0';
    if (ack->updated_ns > epoch->publisher->seen_ns)
        epoch->publisher->seen_ns = ack->updated_ns;
    return EF_OK;
}

struct load {
    struct ef_aggregate *aggregate;
    const uint8_t *publisher; /* of the one that is looked for */
    uint64_t epoch;
    int64_t now_ns;
    struct ef_err *err;
};

static ef_rc
load_any(void *arg, const struct ef_store_ack *ack)
{
    struct load *load = arg;
    struct ef_delivery *delivery = &load->aggregate->delivery;

    if (delivery->epoch_count >= load->aggregate->options.publishers_max) {
        delivery->forgotten = true; /* looked up when it is needed */
        return EF_OK;
    }
    return load_ack(load->aggregate, ack, ack->updated_ns, load->err);
}

ef_rc
ef_delivery_load(struct ef_aggregate *aggregate, struct ef_err *err)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct load load = {.aggregate = aggregate, .err = err};

    ef_map_init(&delivery->epoch_of, (size_t)aggregate->options.publishers_max + 1);
    ef_map_init(&delivery->publisher_of, (size_t)aggregate->options.publishers_max + 1);
    delivery->parked_tail = &delivery->parked;
    return ef_store_each_ack(aggregate->store, load_any, &load, err);
}

static ef_rc
load_wanted(void *arg, const struct ef_store_ack *ack)
{
    struct load *load = arg;
    ef_rc rc;

    if (ack->epoch != load->epoch || memcmp(ack->publisher, load->publisher, 16) != 0)
        return EF_OK;
    pthread_mutex_lock(&load->aggregate->lock);
    rc = load_ack(load->aggregate, ack, load->now_ns, load->err);
    pthread_mutex_unlock(&load->aggregate->lock);
    return rc;
}

ef_rc
ef_delivery_recall(struct ef_aggregate *aggregate, const uint8_t publisher[16], uint64_t epoch,
                   int64_t now_ns, struct ef_err *err)
{
    struct load load = {aggregate, publisher, epoch, now_ns, err};

    return ef_store_each_ack(aggregate->store, load_wanted, &load, err);
}

void
ef_delivery_fini(struct ef_delivery *delivery)
{
    while (delivery->parked != NULL) {
        struct ef_parked *next = delivery->parked->next;
        free(delivery->parked->packed);
        free(delivery->parked->missing);
        free(delivery->parked);
        delivery->parked = next;
    }
    for (uint32_t i = 0; i < delivery->epoch_count; i++)
        free_epoch(delivery->epochs[i]);
    for (uint32_t i = 0; i < delivery->publisher_count; i++)
        free_publisher(delivery->publishers[i]);
    free(delivery->epochs);
    free(delivery->publishers);
    ef_map_fini(&delivery->epoch_of);
    ef_map_fini(&delivery->publisher_of);
}

/* ---- sequences ---- */

/* Index of the first of `above` that is not below the sequence. */
static uint32_t
above_index(const struct ef_epoch *epoch, uint64_t sequence)
{
    uint32_t low = 0, high = epoch->above_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (epoch->above[middle] < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool
ef_epoch_has(const struct ef_epoch *epoch, uint64_t sequence)
{
    uint32_t index;

    if (sequence <= epoch->contiguous)
        return true;
    index = above_index(epoch, sequence);
    return index < epoch->above_count && epoch->above[index] == sequence;
}

bool
ef_epoch_can_mark(struct ef_aggregate *aggregate, struct ef_epoch *epoch, uint64_t sequence)
{
    void *array = epoch->above;
    uint32_t before = epoch->above_cap;

    if (sequence == epoch->contiguous + 1)
        return true;
    if (epoch->above_count >= EF_ACK_ABOVE_MAX)
        return false;
    if (!ef_agg_grow_u32(&array, &epoch->above_cap, epoch->above_count + 1, sizeof(*epoch->above)))
        return false;
    epoch->above = array;
    aggregate->delivery_bytes += (epoch->above_cap - before) * sizeof(*epoch->above);
    return true;
}

/* Takes what has become contiguous out of the set above. */
static void
absorb(struct ef_epoch *epoch)
{
    uint32_t gone = above_index(epoch, epoch->contiguous + 1);

    while (gone < epoch->above_count && epoch->above[gone] == epoch->contiguous + 1) {
        epoch->contiguous++;
        gone++;
    }
    epoch->above_count -= gone;
    if (gone > 0)
        memmove(epoch->above, epoch->above + gone, epoch->above_count * sizeof(*epoch->above));
}

void
ef_epoch_advance(struct ef_epoch *epoch, uint64_t contiguous)
{
    if (contiguous <= epoch->contiguous)
        return;
    epoch->contiguous = contiguous;
    epoch->dirty = true;
    absorb(epoch);
}

void
ef_epoch_mark(struct ef_epoch *epoch, uint64_t sequence)
{
    uint32_t index;

    epoch->dirty = true;
    if (sequence == epoch->contiguous + 1) {
        epoch->contiguous = sequence;
        absorb(epoch);
        return;
    }
    index = above_index(epoch, sequence);
    memmove(epoch->above + index + 1, epoch->above + index,
            (epoch->above_count - index) * sizeof(*epoch->above));
    epoch->above[index] = sequence;
    epoch->above_count++;
}

bool
ef_delivery_is_parked(const struct ef_aggregate *aggregate, const struct ef_epoch *epoch,
                      uint64_t sequence)
{
    if (epoch->parked_count == 0)
        return false;
    for (const struct ef_parked *parked = aggregate->delivery.parked; parked != NULL;
         parked = parked->next) {
        if (parked->epoch == epoch && parked->sequence == sequence)
            return true;
    }
    return false;
}
