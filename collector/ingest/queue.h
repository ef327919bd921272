/*
 * A queue of nng messages between the thread that receives and the thread that applies, bounded in
 * messages and in bytes. Takes messages; what does not fit is freed and false is returned.
 */
#ifndef COLLECTOR_INGEST_QUEUE_H
#define COLLECTOR_INGEST_QUEUE_H

#include <nng/nng.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ef_queue {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t filled;
    nng_msg **messages; /* ring */
    uint32_t cap, first, count;
    uint64_t bytes, bytes_max;
    bool closed, waiting;
};

bool ef_queue_init(struct ef_queue *queue, uint32_t messages_max, uint64_t bytes_max);
void ef_queue_fini(struct ef_queue *queue);
/* Takes the message. False: full or closed, and the message is gone. */
bool ef_queue_put(struct ef_queue *queue, nng_msg *message);
/* Gives the oldest message (nng_msg_free); waits for one. NULL: closed. */
nng_msg *ef_queue_get(struct ef_queue *queue);
/* Nothing more goes in or out. */
void ef_queue_close(struct ef_queue *queue);
void ef_queue_get_stat(struct ef_queue *queue, uint64_t *ret_messages, uint64_t *ret_bytes);

#endif
