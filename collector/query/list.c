/*
 * Decides what is said of workers and versions in lists. Reads the first and last bucket of each
 * series, never their content. Runs in the thread that asks.
 */
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

/* Widens the entry by one version. */
static ef_rc
add_version(struct ef_query *query, const struct ef_catalogue *catalogue,
            const struct ef_catalogue_version *version, struct ef_query_entry *entry,
            struct ef_err *err)
{
    int64_t first_seen_ns = INT64_MAX, last_seen_ns = INT64_MIN;

    for (size_t i = 0; i < version->series_count; i++) {
        const struct ef_catalogue_series *series = &catalogue->series[version->series_first + i];
        int64_t first, last;
        ef_rc rc = ef_store_series_span(query->store, EF_TIER_10S, series->id, &first, &last, err);
        if (series->profile_type < 32)
            entry->types |= 1u << series->profile_type;
        if (rc == EF_ENOTFOUND)
            continue;
        if (rc != EF_OK)
            return rc;
        first_seen_ns = first < first_seen_ns ? first : first_seen_ns;
        last_seen_ns = last + EF_BUCKET_NS > last_seen_ns ? last + EF_BUCKET_NS : last_seen_ns;
    }
    if (first_seen_ns > last_seen_ns)
        first_seen_ns = last_seen_ns = version->created_ns;
    if (entry->version_count == 0 || first_seen_ns < entry->first_seen_ns)
        entry->first_seen_ns = first_seen_ns;
    if (entry->version_count == 0 || last_seen_ns > entry->last_seen_ns)
        entry->last_seen_ns = last_seen_ns;
    entry->account = version->account;
    entry->worker = version->worker;
    entry->version = version->version;
    entry->version_count++;
    return EF_OK;
}

static int
worker_order(const void *a, const void *b)
{
    const struct ef_catalogue_version *one = *(const struct ef_catalogue_version *const *)a;
    const struct ef_catalogue_version *two = *(const struct ef_catalogue_version *const *)b;
    int order = strcmp(one->account, two->account);

    return order != 0 ? order : strcmp(one->worker, two->worker);
}

/* The last bucket may not be over yet. */
static void
clip(struct ef_query_entry *entry, int64_t now_ns)
{
    if (entry->last_seen_ns > now_ns && entry->first_seen_ns <= now_ns)
        entry->last_seen_ns = now_ns;
}

ef_rc
ef_query_workers(struct ef_query *query, int64_t now_ns, ef_query_entry_fn fn, void *arg,
                 struct ef_err *err)
{
    struct ef_catalogue *catalogue;
    const struct ef_catalogue_version **order;
    ef_rc rc = ef_query_catalogue(query, &catalogue, err);
    size_t at = 0;

    if (rc != EF_OK)
        return rc;
    order = calloc(catalogue->version_count + 1, sizeof(struct ef_catalogue_version *));
    if (order == NULL) {
        ef_query_catalogue_unref(catalogue);
        return ef_err_set(err, EF_ENOMEM, "no memory for the list of workers");
    }
    for (size_t i = 0; i < catalogue->version_count; i++)
        order[i] = &catalogue->versions[i];
    if (catalogue->version_count > 0)
        qsort(order, catalogue->version_count, sizeof(struct ef_catalogue_version *), worker_order);
    while (rc == EF_OK && at < catalogue->version_count) {
        struct ef_query_entry entry = {0};
        size_t first = at;
        for (; at < catalogue->version_count && rc == EF_OK &&
               worker_order(&order[first], &order[at]) == 0;
             at++)
            rc = add_version(query, catalogue, order[at], &entry, err);
        entry.version = NULL;
        clip(&entry, now_ns);
        if (rc == EF_OK)
            rc = fn(arg, &entry);
    }
    free(order);
    ef_query_catalogue_unref(catalogue);
    return rc;
}

static int
newest_first(const void *a, const void *b)
{
    const struct ef_query_entry *one = a, *two = b;

    if (one->first_seen_ns != two->first_seen_ns)
        return one->first_seen_ns > two->first_seen_ns ? -1 : 1;
    return strcmp(two->version, one->version);
}

ef_rc
ef_query_versions(struct ef_query *query, const char *worker, const char *account, int64_t now_ns,
                  ef_query_entry_fn fn, void *arg, struct ef_err *err)
{
    struct ef_catalogue *catalogue;
    struct ef_query_entry *entries;
    size_t count = 0;
    ef_rc rc = ef_query_catalogue(query, &catalogue, err);

    if (rc != EF_OK)
        return rc;
    entries = calloc(catalogue->version_count + 1, sizeof(*entries));
    if (entries == NULL) {
        ef_query_catalogue_unref(catalogue);
        return ef_err_set(err, EF_ENOMEM, "no memory for the list of versions");
    }
    for (size_t i = 0; i < catalogue->version_count && rc == EF_OK; i++) {
        const struct ef_catalogue_version *version = &catalogue->versions[i];
        if (strcmp(version->worker, worker) != 0 ||
            (account != NULL && strcmp(version->account, account) != 0))
            continue;
        rc = add_version(query, catalogue, version, &entries[count], err);
        clip(&entries[count++], now_ns);
    }
    if (rc == EF_OK && count > 0)
        qsort(entries, count, sizeof(*entries), newest_first);
    for (size_t i = 0; i < count && rc == EF_OK; i++)
        rc = fn(arg, &entries[i]);
    free(entries);
    ef_query_catalogue_unref(catalogue);
    return rc;
}
