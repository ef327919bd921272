/*
 * Decides what counts as a whole gzip stream: one or more members and nothing after them. Must not
 * know what is inside. Any thread.
 */
#include "proto/pprof/pprof.h"

#include <string.h>
#include <zlib.h>

#define GZIP_WINDOW_BITS (15 + 16)         /* zlib.h: 16 asks for the gzip wrapper */
#define CHUNK_BYTES ((size_t)128 << 10)    /* of output at a time; chosen */
#define INPUT_PART_BYTES ((size_t)1 << 30) /* zlib counts input in an unsigned int */

static ef_rc
inflate_error(const z_stream *stream, int rc, struct ef_err *err)
{
    if (rc == Z_MEM_ERROR)
        return ef_err_set(err, EF_ENOMEM, "out of memory while decompressing");
    return ef_err_set(err, EF_ECORRUPT, "gzip: damaged: %s",
                      stream->msg != NULL ? stream->msg : "unexpected data");
}

/* Makes room for output. When none is left, a stream that has more to give is too large. */
static ef_rc
make_room(struct ef_buf *out, struct ef_err *err)
{
    size_t left = out->bytes_max - out->len;
    size_t more = left < CHUNK_BYTES ? left : CHUNK_BYTES;

    if (left == 0)
        return ef_err_set(err, EF_ELIMIT, "gzip: more than %zu bytes after decompression",
                          out->bytes_max);
    if (!ef_buf_reserve(out, more))
        return ef_err_set(err, EF_ENOMEM, "out of memory while decompressing");
    return EF_OK;
}

static ef_rc
inflate_members(z_stream *stream, const uint8_t *data, size_t len, struct ef_buf *out,
                struct ef_err *err)
{
    size_t given = 0; /* bytes of data that zlib has been shown */
    size_t members = 0;

    for (;;) {
        size_t room;
        int rc;
        ef_rc made;
        if (stream->avail_in == 0 && given < len) {
            size_t part = len - given < INPUT_PART_BYTES ? len - given : INPUT_PART_BYTES;
            stream->next_in = (z_const Bytef *)(uintptr_t)(data + given);
            stream->avail_in = (uInt)part;
            given += part;
        }
        made = make_room(out, err);
        if (made != EF_OK)
            return made;
        room = out->cap - out->len < INPUT_PART_BYTES ? out->cap - out->len : INPUT_PART_BYTES;
        stream->next_out = out->data + out->len;
        stream->avail_out = (uInt)room;
        rc = inflate(stream, Z_NO_FLUSH);
        out->len += room - stream->avail_out;
        if (rc == Z_STREAM_END && stream->avail_in == 0 && given == len)
            return EF_OK;
        if (rc == Z_STREAM_END) {
            if (inflateReset(stream) != Z_OK)
                return inflate_error(stream, Z_DATA_ERROR, err);
            members++;
        } else if (rc == Z_DATA_ERROR && members > 0 && stream->total_out == 0) {
            return ef_err_set(err, EF_ECORRUPT, "gzip: other data after its end");
        } else if (rc == Z_BUF_ERROR && stream->avail_in == 0 && given == len) {
            return ef_err_set(err, EF_ECORRUPT, "gzip: ends too early");
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return inflate_error(stream, rc, err);
        }
    }
}

ef_rc
ef_gzip_inflate(const uint8_t *data, size_t len, struct ef_buf *out, struct ef_err *err)
{
    z_stream stream = {0};
    ef_rc rc;

    if (inflateInit2(&stream, GZIP_WINDOW_BITS) != Z_OK)
        return ef_err_set(err, EF_ENOMEM, "out of memory while decompressing");
    rc = inflate_members(&stream, data, len, out, err);
    inflateEnd(&stream);
    return rc;
}

ef_rc
ef_gzip_deflate(const uint8_t *data, size_t len, struct ef_buf *out, struct ef_err *err)
{
    z_stream stream = {0};
    size_t bound;
    ef_rc rc = EF_OK;

    if (len > INPUT_PART_BYTES)
        return ef_err_set(err, EF_ELIMIT, "gzip: %zu bytes are too many", len);
    /* Level 6 is zlib's own middle; no name and no time in the header, so bytes are repeatable. */
    if (deflateInit2(&stream, 6, Z_DEFLATED, GZIP_WINDOW_BITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return ef_err_set(err, EF_ENOMEM, "out of memory while compressing");
    bound = deflateBound(&stream, (uLong)len);
    if (!ef_buf_reserve(out, bound)) {
        rc = ef_buf_check(out, "the compressed profile", err);
        goto out;
    }
    stream.next_in = (z_const Bytef *)(uintptr_t)data;
    stream.avail_in = (uInt)len;
    stream.next_out = out->data + out->len;
    stream.avail_out = (uInt)bound;
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END)
        rc = ef_err_set(err, EF_EIO, "gzip: compression did not finish");
    else
        out->len += stream.total_out;
out:
    deflateEnd(&stream);
    return rc;
}
