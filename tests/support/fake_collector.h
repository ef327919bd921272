/*
 * A collector for tests of whoever publishes: SUB and REP sockets, everything decoded with ef_wire,
 * nothing stored. It says honestly what it has and lacks, unless told to misbehave.
 *
 * Two threads of its own, which record and never assert. The test thread looks at the record with
 * the lock held (ef_fake_lock), or waits for a condition on it (ef_fake_wait).
 */
#ifndef TESTS_SUPPORT_FAKE_COLLECTOR_H
#define TESTS_SUPPORT_FAKE_COLLECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/map.h"
#include "proto/wire/wire.h"

#define EF_FAKE_EPOCHS_MAX 16
#define EF_FAKE_SEQUENCES_MAX 65536
#define EF_FAKE_WANTED_MAX 64

struct ef_fake_epoch {
    uint64_t epoch;
    uint8_t *seen; /* 0 not, 1 received, 2 reported lost; by sequence */
    uint64_t contiguous, newest;
    uint64_t arrivals;     /* batches that came, doubles too */
    uint64_t out_of_order; /* of the first arrivals: those after a younger one */
    uint64_t doubles;
    uint64_t fragments, samples; /* without doubles */
    uint64_t lost_sequences, lost_fragments, lost_samples;
    uint64_t fragments_published, samples_published; /* as last said by the publisher */
    uint64_t first_said, last_said;
};

struct ef_fake {
    /* Behaviour; set it with the lock held. */
    bool mute;            /* sync requests get no answer */
    bool acks_nothing;    /* acknowledged stays 0 */
    bool old_reply_first; /* before each good reply, one with the number of the request before */
    unsigned drop_every;  /* every n-th batch arriving for the first time is dropped; 0 = none */
    uint64_t wanted[EF_FAKE_WANTED_MAX];
    size_t wanted_count; /* asked in each reply; account, worker, version below */
    char account[129], worker[129], version[129];
    int directive_kind; /* sent once in the next reply, then 0 */
    /* Record. */
    struct ef_fake_epoch epochs[EF_FAKE_EPOCHS_MAX];
    size_t epoch_count;
    struct ef_map stack_definitions, function_definitions; /* hash -> times defined */
    struct ef_map stack_samples;                           /* hash -> samples */
    struct ef_map stack_parent;                            /* hash -> parent */
    uint64_t undefined_first; /* samples whose stack was not defined before, in order of arrival */
    uint64_t usages, bad_messages, requests, targets;
    uint64_t batches_without_fragments;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    char name[129];
    struct ef_fake_inner *inner;
};

/* Listens on "tcp://127.0.0.1:<port>"; 0 = any free port. Fails the test when it cannot. */
struct ef_fake *ef_fake_open(int ingest_port, int sync_port);
void ef_fake_free(struct ef_fake *fake);
const char *ef_fake_ingest_url(const struct ef_fake *fake);
const char *ef_fake_sync_url(const struct ef_fake *fake);
void ef_fake_ports(const struct ef_fake *fake, int *ret_ingest, int *ret_sync);

void ef_fake_lock(struct ef_fake *fake);
void ef_fake_unlock(struct ef_fake *fake);
/* Waits until the condition, asked with the lock held after each event, is true. False: 20 s
 * passed. */
bool ef_fake_wait(struct ef_fake *fake, bool (*condition)(struct ef_fake *fake, void *arg),
                  void *arg);
/* Forgets everything that arrived, as a collector on a fresh data folder. Takes the lock itself. */
void ef_fake_forget(struct ef_fake *fake);
/* The record of an epoch, NULL = nothing heard. Lock held. */
struct ef_fake_epoch *ef_fake_epoch(struct ef_fake *fake, uint64_t epoch);
uint64_t ef_fake_map(const struct ef_map *map, uint64_t key); /* 0 = not there */

#endif
