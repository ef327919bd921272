/*
 * A WebSocket that carries one JSON object per message: nng's stream client in text mode.
 *
 * Invariants: one receive is always outstanding, without a timeout and never cancelled while the
 * stream lives (nng 1.5.2 crashes on cancelled receives elsewhere); waiting is done on our own
 * condition, and closing the stream is the only way to end a receive. At most EF_WS_BYTES_MAX of
 * one document and as much again of unread ones are held.
 * Threads: nng's call the receive and send callbacks; everything here is for one other thread.
 */
#ifndef SAMPLER_V8_WS_H
#define SAMPLER_V8_WS_H

#include "proto/base/err.h"
#include "proto/base/time.h"
#include "sampler/v8/json_text.h"

/* V8 replies reached 7 MB in 2 s of fine allocation sampling; an hour at 10 ms stays under 20 MB.
 */
#define EF_WS_BYTES_MAX ((size_t)64 << 20)

struct ef_ws;

/* Connects and shakes hands; blocks up to deadline_ms. EF_EUNREACH, EF_ETIMEOUT, EF_ECORRUPT (the
 * peer does not speak WebSocket), EF_ENOMEM. */
EF_MUST_USE ef_rc ef_ws_open(const char *url, uint64_t deadline_ms, struct ef_ws **ret_ws,
                             struct ef_err *err);
/* Says goodbye, closes, frees. The goodbye may still be under way. NULL is fine. */
void ef_ws_free(struct ef_ws *ws);
uint16_t ef_ws_local_port(const struct ef_ws *ws); /* 0 = unknown */

/*
 * When these bytes arrive the stream is closed grace_ms later, whatever our own thread is doing
 * then: somebody waits for us to leave. `needle` stays the caller's and must outlive the stream.
 */
void ef_ws_leave_after(struct ef_ws *ws, const char *needle, uint64_t grace_ms);

/* Sends one message. EF_ECLOSED, EF_ETIMEOUT (the stream is closed then). */
EF_MUST_USE ef_rc ef_ws_send(struct ef_ws *ws, const char *text, size_t len, ef_mono_ns deadline,
                             struct ef_err *err);
/*
 * Waits for the next document; a deadline in the past only looks. The text is borrowed until the
 * next call. *ret_arrived: when its last byte was there, or later. EF_ETIMEOUT; EF_ECLOSED after
 * the last document; EF_ELIMIT, EF_ECORRUPT: the stream is of no use any more.
 */
EF_MUST_USE ef_rc ef_ws_next(struct ef_ws *ws, ef_mono_ns deadline, struct ef_json_text *ret_doc,
                             ef_mono_ns *ret_arrived, struct ef_err *err);

#endif
