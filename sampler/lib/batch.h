/*
 * The batch under construction: copies of what was added, each source once, definitions grouped by
 * version at the end.
 *
 * Invariants: wire_bytes never falls short of the packed size. Nothing in a batch points to memory
 * of the caller. Not thread-safe: the publisher's lock guards it.
 */
#ifndef SAMPLER_LIB_BATCH_H
#define SAMPLER_LIB_BATCH_H

#include "proto/base/map.h"
#include "proto/wire/arena.h"
#include "proto/wire/wire.h"
#include "sampler/lib/dictionary.h"
#include "sampler/lib/publisher.h"

#define EF_BATCH_ITEMS_MAX 1024u /* fragments, and usages, and sources */
/* One fragment alone: what fits into a message even if it does not compress. */
#define EF_BATCH_FRAGMENT_BYTES_MAX (EF_WIRE_BATCH_BYTES_MAX - 131072u)

struct ef_batch {
    struct ef_wire_arena arena;
    Everflame__V1__Source *sources[EF_BATCH_ITEMS_MAX];
    uint64_t source_hash[EF_BATCH_ITEMS_MAX];
    Everflame__V1__Fragment *fragments[EF_BATCH_ITEMS_MAX];
    Everflame__V1__Usage *usages[EF_BATCH_ITEMS_MAX];
    size_t source_count, fragment_count, usage_count;
    uint64_t samples;
    size_t wire_bytes; /* estimate before compression, never too small; with pending definitions */
    ef_mono_ns opened; /* when the first item came */
    /* Scratch of one fragment. */
    struct ef_map places; /* hash -> row */
    uint32_t *rows;       /* row of each sample */
    size_t row_cap;
};

void ef_batch_init(struct ef_batch *batch);
void ef_batch_fini(struct ef_batch *batch);
void ef_batch_clear(struct ef_batch *batch);
static inline bool
ef_batch_is_empty(const struct ef_batch *batch)
{
    return batch->wire_bytes == 0;
}

/*
 * Makes the wire form of a fragment, not yet part of the batch; `hashes` has the hash to publish of
 * each sample. Rows with the same hash become one. Valid until the batch is cleared.
 */
EF_MUST_USE ef_rc ef_batch_make_fragment(struct ef_batch *batch, const struct ef_fragment *fragment,
                                         const uint64_t *hashes,
                                         Everflame__V1__Fragment **ret_fragment,
                                         struct ef_err *err);
/* EF_EINVAL or EF_ELIMIT with the reason when the collector would refuse source or fragment. */
EF_MUST_USE ef_rc ef_batch_check(const struct ef_source *source, Everflame__V1__Fragment *fragment,
                                 Everflame__V1__Usage *usage, struct ef_err *err);
/* Whether an item of so many bytes from one more source still fits under the limits. */
bool ef_batch_has_room(const struct ef_batch *batch, size_t bytes, size_t bytes_max);
/* Size that ef_batch_has_room wants to know. */
size_t ef_batch_source_bytes(const struct ef_source *source);

EF_MUST_USE ef_rc ef_batch_add_fragment(struct ef_batch *batch, const struct ef_source *source,
                                        Everflame__V1__Fragment *fragment, struct ef_err *err);
EF_MUST_USE ef_rc ef_batch_add_usage(struct ef_batch *batch, const struct ef_usage *usage,
                                     struct ef_err *err);
/*
 * Packs everything with the pending definitions of the dictionary. Clears neither the batch nor
 * what is pending: a failure may be tried again.
 */
EF_MUST_USE ef_rc ef_batch_pack(struct ef_batch *batch, const struct ef_dictionary *dictionary,
                                const struct ef_wire_keys *keys, struct ef_wire_header *header,
                                struct ef_buf *out, struct ef_err *err);

/* Fills a wire source that borrows the texts. */
void ef_batch_borrow_source(const struct ef_source *source, Everflame__V1__Source *ret);
/* Copies a source into an arena; NULL: no memory. */
Everflame__V1__Source *ef_batch_copy_source(struct ef_wire_arena *arena,
                                            const struct ef_source *source);
/* Copies a text; NULL counts as "". At most len_max bytes, cut at a character. NULL: no memory. */
char *ef_batch_copy_text(struct ef_wire_arena *arena, const char *text, size_t len_max);

#endif
