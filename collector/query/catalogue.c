/*
 * Decides how workers, versions and series are kept between queries. Must not know what is asked of
 * them. Loaded by whichever thread finds it missing; immutable afterwards.
 */
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"
#include "proto/base/limit.h"

/* 100,000 series of 10,000 workers with names of 60 bytes need 10 MB; chosen well above. */
#define TEXT_BYTES_MAX (256u << 20)

struct loading {
    struct ef_catalogue *catalogue;
    size_t version_room, series_room;
    struct ef_err *err;
};

static bool
make_room(void *array_at, size_t count, size_t *room, size_t size)
{
    void **array = array_at;
    size_t wanted = *room == 0 ? 64 : *room * 2;
    void *grown;

    if (count < *room)
        return true;
    grown = reallocarray(*array, wanted, size);
    if (grown == NULL)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}

/* Texts are kept as offsets while the buffer may still move. */
static const char *
keep(struct ef_catalogue *catalogue, const char *text)
{
    size_t at = catalogue->text.len;

    ef_buf_append(&catalogue->text, text, strlen(text) + 1);
    return (const char *)(uintptr_t)at; /* NOLINT(performance-no-int-to-ptr): see settle() */
}

static ef_rc
take_version(void *arg, const struct ef_store_version *version)
{
    struct loading *loading = arg;
    struct ef_catalogue *catalogue = loading->catalogue;

    if (!make_room(&catalogue->versions, catalogue->version_count, &loading->version_room,
                   sizeof(*catalogue->versions)))
        return ef_err_set(loading->err, EF_ENOMEM, "no memory for the list of versions");
    catalogue->versions[catalogue->version_count++] =
        (struct ef_catalogue_version){.id = version->id,
                                      .account = keep(catalogue, version->account),
                                      .worker = keep(catalogue, version->worker),
                                      .version = keep(catalogue, version->version),
                                      .created_ns = version->created_ns};
    return EF_OK;
}

static ef_rc
take_series(void *arg, const struct ef_store_series *series)
{
    struct loading *loading = arg;
    struct ef_catalogue *catalogue = loading->catalogue;

    if (!make_room(&catalogue->series, catalogue->series_count, &loading->series_room,
                   sizeof(*catalogue->series)))
        return ef_err_set(loading->err, EF_ENOMEM, "no memory for the list of series");
    catalogue->series[catalogue->series_count++] =
        (struct ef_catalogue_series){.id = series->id,
                                     .version_id = series->version_id,
                                     .profile_type = series->profile_type,
                                     .region = keep(catalogue, series->region)};
    return EF_OK;
}

static int
series_order(const void *a, const void *b)
{
    const struct ef_catalogue_series *one = a, *two = b;

    if (one->version_id != two->version_id)
        return one->version_id < two->version_id ? -1 : 1;
    return one->id < two->id ? -1 : one->id > two->id;
}

/* Offsets become pointers; each version finds its series. */
static void
settle(struct ef_catalogue *catalogue)
{
    const char *base = (const char *)catalogue->text.data;
    size_t at = 0;

    if (catalogue->series_count > 0)
        qsort(catalogue->series, catalogue->series_count, sizeof(*catalogue->series), series_order);
    for (size_t i = 0; i < catalogue->series_count; i++)
        catalogue->series[i].region = base + (uintptr_t)catalogue->series[i].region;
    for (size_t i = 0; i < catalogue->version_count; i++) {
        struct ef_catalogue_version *version = &catalogue->versions[i];
        version->account = base + (uintptr_t)version->account;
        version->worker = base + (uintptr_t)version->worker;
        version->version = base + (uintptr_t)version->version;
        while (at < catalogue->series_count && catalogue->series[at].version_id < version->id)
            at++;
        version->series_first = at;
        while (at < catalogue->series_count && catalogue->series[at].version_id == version->id)
            at++;
        version->series_count = at - version->series_first;
    }
}

ef_rc
ef_query_catalogue_load(struct ef_store *store, struct ef_catalogue **ret_catalogue,
                        struct ef_err *err)
{
    struct ef_catalogue *catalogue = calloc(1, sizeof(*catalogue));
    struct loading loading = {catalogue, 0, 0, err};
    ef_rc rc;

    if (catalogue == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the catalogue");
    atomic_init(&catalogue->refs, 1);
    catalogue->loaded = ef_mono_now();
    ef_buf_init(&catalogue->text, TEXT_BYTES_MAX);
    /* Series first: a version is there before its series, so none is left without. */
    rc = ef_store_each_series(store, take_series, &loading, err);
    if (rc == EF_OK)
        rc = ef_store_each_version(store, take_version, &loading, err);
    if (rc == EF_OK)
        rc = ef_buf_check(&catalogue->text, "catalogue", err);
    if (rc != EF_OK) {
        ef_query_catalogue_unref(catalogue);
        return rc;
    }
    settle(catalogue);
    *ret_catalogue = catalogue;
    return EF_OK;
}

void
ef_query_catalogue_unref(struct ef_catalogue *catalogue)
{
    if (catalogue == NULL || atomic_fetch_sub(&catalogue->refs, 1) != 1)
        return;
    free(catalogue->versions);
    free(catalogue->series);
    ef_buf_fini(&catalogue->text);
    free(catalogue);
}
