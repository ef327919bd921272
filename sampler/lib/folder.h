/*
 * The files of a spool: one folder of one publisher, append-only segments per epoch, and one file
 * of losses per epoch.
 *
 * Invariants: the folder is locked (flock) while open, so a second publisher gets EF_ECONFLICT. A
 * record is written whole or cut off again. Records carry a checksum over header and content; what
 * does not match is skipped when reading. No fsync: killed processes lose nothing, a power failure
 * may lose the last seconds. Not thread-safe: the owner's lock guards it.
 *
 * Files: "lock", "publisher" (32 hex digits), "<epoch>-<first sequence>.spool", "<epoch>.loss";
 * numbers with 20 digits, so that names sort by age.
 */
#ifndef SAMPLER_LIB_FOLDER_H
#define SAMPLER_LIB_FOLDER_H

#include "proto/base/err.h"
#include "proto/wire/wire.h"

/* One batch, or one loss (then data is NULL). */
struct ef_spool_record {
    uint64_t epoch, sequence;
    uint32_t fragments; /* in the batch */
    uint64_t samples;
    uint64_t fragments_published, samples_published; /* of the epoch, this batch included */
    uint8_t *data;
    size_t len;
};

/* Makes the id of a new publisher from the kernel's random numbers. EF_EIO. */
EF_MUST_USE ef_rc ef_spool_new_publisher(uint8_t ret[EF_WIRE_PUBLISHER_BYTES], struct ef_err *err);

struct ef_spool_folder;

/* Makes the folder if it is not there. EF_ECONFLICT: in use. */
EF_MUST_USE ef_rc ef_spool_folder_open(const char *path, uint64_t segment_bytes_max,
                                       struct ef_spool_folder **ret_folder, struct ef_err *err);
/* Leaves the files. NULL is fine. */
void ef_spool_folder_free(struct ef_spool_folder *folder);
/* The publisher that owns the folder: kept over restarts, made when the folder is new. */
const uint8_t *ef_spool_folder_publisher(const struct ef_spool_folder *folder);
/* Newest epoch in the folder; 0 = none. */
uint64_t ef_spool_folder_newest_epoch(const struct ef_spool_folder *folder);

/*
 * Gives every good record, oldest epoch first, losses of an epoch before its batches, batches in
 * order. `visit` borrows the record. Also says where an epoch's oldest segment begins, by a record
 * with len 0 and sequence = the first one. A torn end is cut off the newest segment of an epoch.
 */
typedef ef_rc (*ef_spool_visit)(void *arg, const struct ef_spool_record *record,
                                struct ef_err *err);
EF_MUST_USE ef_rc ef_spool_folder_load(struct ef_spool_folder *folder, size_t epochs_max,
                                       ef_spool_visit visit_first, ef_spool_visit visit_batch,
                                       ef_spool_visit visit_loss, void *arg, struct ef_err *err);

/* Appends a batch; records of one epoch come in order. EF_ENOSPC, EF_EIO: nothing was written. */
EF_MUST_USE ef_rc ef_spool_folder_append(struct ef_spool_folder *folder,
                                         const struct ef_spool_record *record, struct ef_err *err);
EF_MUST_USE ef_rc ef_spool_folder_append_loss(struct ef_spool_folder *folder,
                                              const struct ef_spool_record *record,
                                              struct ef_err *err);
/* Replaces the losses of an epoch; count 0 removes the file. */
EF_MUST_USE ef_rc ef_spool_folder_rewrite_losses(struct ef_spool_folder *folder, uint64_t epoch,
                                                 const struct ef_spool_record *records,
                                                 size_t count, struct ef_err *err);
/*
 * Removes segments that hold nothing at or after first_sequence. The newest segment of the epoch
 * goes only when `all` (or when it is large), so that quiet publishers do not make a file a second.
 */
void ef_spool_folder_forget(struct ef_spool_folder *folder, uint64_t epoch, uint64_t first_sequence,
                            bool all);
/* Removes all files of an epoch. */
void ef_spool_folder_forget_epoch(struct ef_spool_folder *folder, uint64_t epoch);

#endif
