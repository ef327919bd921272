/*
 * Looks into JSON text without a tree: where a document ends in a stream of bytes, and where a
 * member of an object stands. A reply of an inspector holds a profile of up to 64 MiB; a tree of it
 * would cost ten times that, so it is cut out as text and given to its reader.
 *
 * Invariants: nothing recurses, nothing reads past the end, whatever the text holds. Text that is
 * not JSON gives "absent", or a slice that its reader will refuse. Pure; any thread.
 */
#ifndef SAMPLER_V8_JSON_TEXT_H
#define SAMPLER_V8_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of somebody's buffer. at NULL = absent. */
struct ef_json_text {
    const char *at;
    size_t len;
};

/* State between two pieces of a stream. Begin with all zero. */
struct ef_json_frame {
    uint64_t depth;
    bool in_string;
    bool escaped;
    bool bad; /* something else than an object began */
};

/*
 * Looks at the next bytes of a stream of objects. True: the object ended, *ret_len bytes belong to
 * it, and the state is new again. False: all bytes were taken and the end is not among them, or
 * frame->bad.
 */
bool ef_json_frame_feed(struct ef_json_frame *frame, const char *data, size_t len, size_t *ret_len);

/* The first member of this name of an object; names are compared as written, without escapes. */
struct ef_json_text ef_json_member(struct ef_json_text object, const char *name);

/* A tree of a small text (at most bytes_max); any value. NULL when too long or not JSON. The caller
 * calls json_decref. */
json_t *ef_json_text_load(struct ef_json_text text, size_t bytes_max);
/* An integer, exact; false for anything else. */
bool ef_json_text_int(struct ef_json_text text, int64_t *ret);
/* A string, cut at a character to len - 1 bytes; false (and "") for anything else. */
bool ef_json_text_str(struct ef_json_text text, char *value, size_t len);
/* The string member of a tree, likewise. */
bool ef_json_tree_str(const json_t *object, const char *name, char *value, size_t len);

#endif
