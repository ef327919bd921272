/*
 * Decides who would hear a request to collect. Any thread; takes the lock for as long as it takes
 * to look through the targets that agents told last.
 */
#include "collector/aggregate/internal.h"

#include <string.h>

#define CONNECTED_NS (INT64_C(5) * EF_NS_PER_S)     /* five sync intervals, as in status.c */
#define TARGETS_LIFE_NS (INT64_C(60) * EF_NS_PER_S) /* as in status.c */

struct wanted {
    const char *account, *worker, *version; /* "" = any */
};

static bool
matches(const struct wanted *wanted, const char *account, const char *worker, const char *version)
{
    return strcmp(wanted->worker, worker) == 0 &&
           (wanted->account[0] == '\0' || strcmp(wanted->account, account) == 0) &&
           (wanted->version[0] == '\0' || strcmp(wanted->version, version) == 0);
}

static bool
names_target(const struct ef_publisher_view *publisher, const struct wanted *wanted)
{
    Everflame__V1__SyncRequest *request =
        everflame__v1__sync_request__unpack(NULL, publisher->targets_len, publisher->targets);
    bool found = false;

    for (size_t i = 0; request != NULL && i < request->n_targets && !found; i++) {
        const Everflame__V1__Source *source = request->targets[i]->source;
        found = source != NULL && matches(wanted, source->account, source->worker, source->version);
    }
    if (request != NULL)
        everflame__v1__sync_request__free_unpacked(request, NULL);
    return found;
}

void
ef_aggregate_reach(struct ef_aggregate *aggregate, const char *account, const char *worker,
                   const char *version, int64_t now_ns, struct ef_reach *ret_reach)
{
    const struct ef_delivery *delivery = &aggregate->delivery;
    const struct ef_catalogue *catalogue = &aggregate->catalogue;
    struct wanted wanted = {account, worker, version};
    struct ef_reach reach = {false, false, false};

    pthread_mutex_lock(&aggregate->lock);
    for (uint32_t i = 0; i < catalogue->version_count && !reach.version; i++) {
        const struct ef_version *known = catalogue->versions[i];
        reach.version = matches(&wanted, known->account, known->worker, known->version);
    }
    for (uint32_t i = 0; i < delivery->publisher_count; i++) {
        const struct ef_publisher_view *publisher = delivery->publishers[i];
        int64_t silent_ns = now_ns - publisher->synced_ns;
        if (publisher->synced_ns == 0)
            continue;
        reach.publisher |= silent_ns <= CONNECTED_NS;
        if (!reach.target && publisher->targets != NULL && silent_ns <= TARGETS_LIFE_NS)
            reach.target = names_target(publisher, &wanted);
    }
    pthread_mutex_unlock(&aggregate->lock);
    *ret_reach = reach;
}
