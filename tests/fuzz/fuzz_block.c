/*
 * Any bytes: decoding a block ends in pairs or EF_ECORRUPT, and what was decoded encodes to a block
 * that decodes to the same. Single thread.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/block.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

struct decoded {
    struct ef_block_section sections[EF_BLOCK_SECTIONS_MAX];
    size_t count;
};

static void
free_decoded(struct decoded *decoded)
{
    for (size_t i = 0; i < decoded->count; i++)
        free((void *)(uintptr_t)decoded->sections[i].pairs);
    free(decoded);
}

/* NULL when the bytes are no block. */
static struct decoded *
decode(const uint8_t *data, size_t len)
{
    struct decoded *decoded = calloc(1, sizeof(*decoded));
    struct ef_block_section_header header;
    struct ef_block_reader reader;
    ef_rc rc = ef_block_begin(&reader, data, len, NULL);

    while (rc == EF_OK && ef_block_next(&reader, &header, &rc, NULL)) {
        struct ef_block_pair *pairs = calloc(header.pair_count + 1, sizeof(*pairs));
        EF_ASSERT(decoded->count < EF_BLOCK_SECTIONS_MAX);
        EF_ASSERT(header.pair_count <= len);
        decoded->sections[decoded->count++] = (struct ef_block_section){
            header.stratum, header.weight_milli, header.interval, pairs, header.pair_count};
        rc = ef_block_pairs(&reader, &header, pairs, NULL);
    }
    if (rc == EF_OK)
        return decoded;
    EF_ASSERT(rc == EF_ECORRUPT);
    free_decoded(decoded);
    return NULL;
}

static void
assert_same(const struct decoded *a, const struct decoded *b)
{
    EF_ASSERT(a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct ef_block_section *x = &a->sections[i], *y = &b->sections[i];
        EF_ASSERT(x->stratum == y->stratum && x->weight_milli == y->weight_milli);
        EF_ASSERT(x->interval == y->interval && x->pair_count == y->pair_count);
        for (size_t k = 0; k < x->pair_count; k++) {
            EF_ASSERT(x->pairs[k].stack == y->pairs[k].stack);
            EF_ASSERT(x->pairs[k].count == y->pairs[k].count);
            EF_ASSERT(x->pairs[k].value == y->pairs[k].value);
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct decoded *first = decode(data, len), *second;
    struct ef_buf out;

    if (first == NULL)
        return 0;
    ef_buf_init(&out, 64u << 20);
    EF_ASSERT(ef_block_encode(first->sections, first->count, &out, NULL) == EF_OK);
    second = decode(out.data, out.len);
    EF_ASSERT(second != NULL);
    assert_same(first, second);
    free_decoded(first);
    free_decoded(second);
    ef_buf_fini(&out);
    return 0;
}
