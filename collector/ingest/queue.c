/*
 * Decides what is dropped when batches come faster than they are applied: the newest, since it is
 * not acknowledged and comes again, while the oldest has already waited.
 */
#include "collector/ingest/queue.h"

#include <stdlib.h>
#include <time.h>

#define MESSAGE_OVERHEAD 256u /* an nng message of 1 byte; measured with mallinfo2, nng 1.5.2 */

#define GATHER_MS 2 /* chosen: nobody notices, and 10 messages come together under load */

static uint64_t
cost(const nng_msg *message)
{
    return nng_msg_len(message) + MESSAGE_OVERHEAD;
}

bool
ef_queue_init(struct ef_queue *queue, uint32_t messages_max, uint64_t bytes_max)
{
    *queue = (struct ef_queue){.cap = messages_max, .bytes_max = bytes_max};
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->filled, NULL);
    queue->messages = calloc(messages_max, sizeof(*queue->messages));
    return queue->messages != NULL;
}

void
ef_queue_fini(struct ef_queue *queue)
{
    for (; queue->count > 0; queue->count--) {
        nng_msg_free(queue->messages[queue->first]);
        queue->first = (queue->first + 1) % queue->cap;
    }
    free(queue->messages);
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->lock);
}

bool
ef_queue_put(struct ef_queue *queue, nng_msg *message)
{
    bool fits, wake;

    pthread_mutex_lock(&queue->lock);
    fits = !queue->closed && queue->count < queue->cap &&
           queue->bytes + cost(message) <= queue->bytes_max;
    if (fits) {
        queue->messages[(queue->first + queue->count++) % queue->cap] = message;
        queue->bytes += cost(message);
    }
    wake = fits && queue->waiting;
    pthread_mutex_unlock(&queue->lock);
    if (wake)
        pthread_cond_signal(&queue->filled);
    if (!fits)
        nng_msg_free(message);
    return fits;
}

/* Sleeps until there is something, and then a little longer: waking up for each message cost more
 * than a quarter of applying it. */
static void
wait_filled(struct ef_queue *queue)
{
    const struct timespec gather = {0, GATHER_MS * 1000000L};

    while (queue->count == 0 && !queue->closed) {
        queue->waiting = true;
        pthread_cond_wait(&queue->filled, &queue->lock);
        queue->waiting = false;
        if (queue->closed)
            break;
        pthread_mutex_unlock(&queue->lock);
        nanosleep(&gather, NULL);
        pthread_mutex_lock(&queue->lock);
    }
}

nng_msg *
ef_queue_get(struct ef_queue *queue)
{
    nng_msg *message = NULL;

    pthread_mutex_lock(&queue->lock);
    wait_filled(queue);
    if (!queue->closed) {
        message = queue->messages[queue->first];
        queue->first = (queue->first + 1) % queue->cap;
        queue->count--;
        queue->bytes -= cost(message);
    }
    pthread_mutex_unlock(&queue->lock);
    return message;
}

void
ef_queue_close(struct ef_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_mutex_unlock(&queue->lock);
    pthread_cond_broadcast(&queue->filled);
}

void
ef_queue_get_stat(struct ef_queue *queue, uint64_t *ret_messages, uint64_t *ret_bytes)
{
    pthread_mutex_lock(&queue->lock);
    *ret_messages = queue->count;
    *ret_bytes = queue->bytes;
    pthread_mutex_unlock(&queue->lock);
}
