/*
 * Decides the byte form of spool files, what is damage, and when a file goes. Must not know what a
 * batch means. Runs in whatever thread holds the publisher's lock.
 */
#include "sampler/lib/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/buf.h"
#include "proto/base/map.h"
#include "proto/base/text.h"

#define SEGMENT_MAGIC "EFS1"
#define SEGMENT_HEADER_BYTES 40u
#define RECORD_HEADER_BYTES 56u
static const uint8_t record_magic[3] = {'E', 'F', 'R'};
#define TYPE_BATCH 1
#define TYPE_LOSS 2
#define NAME_BYTES_MAX 64u
/* A fully acknowledged newest segment is removed above this; below it is not worth a new file. */
#define SEGMENT_BYTES_KEPT_MAX 262144u
/* Files larger than this are not ours: a segment ends at 8 MiB and one batch more. */
#define FILE_BYTES_MAX (16u << 20)

struct segment {
    uint64_t epoch, first, last; /* sequences; last < first: empty or not known yet */
};

struct ef_spool_folder {
    int dir_fd, lock_fd;
    int fd; /* newest segment of the present epoch; -1 = none */
    uint64_t fd_epoch;
    uint64_t fd_bytes;
    uint64_t segment_bytes_max;
    uint64_t newest_epoch;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    struct segment *segments; /* sorted by epoch, first */
    size_t segment_count, segment_cap;
};

static void
segment_name(char name[NAME_BYTES_MAX], uint64_t epoch, uint64_t first)
{
    snprintf(name, NAME_BYTES_MAX, "%020" PRIu64 "-%020" PRIu64 ".spool", epoch, first);
}

static void
loss_name(char name[NAME_BYTES_MAX], uint64_t epoch)
{
    snprintf(name, NAME_BYTES_MAX, "%020" PRIu64 ".loss", epoch);
}

/* Checksum of a record: of its header (without the checksum) and of its content's hash. */
static uint64_t
record_hash(const uint8_t *header, const uint8_t *data, size_t len)
{
    uint8_t bytes[RECORD_HEADER_BYTES];

    memcpy(bytes, header, RECORD_HEADER_BYTES - 8);
    ef_put_le(bytes + RECORD_HEADER_BYTES - 8, len > 0 ? ef_hash(data, len) : 0, 8);
    return ef_hash(bytes, sizeof(bytes));
}

static void
write_record_header(uint8_t *at, int type, const struct ef_spool_record *record)
{
    memcpy(at, record_magic, sizeof(record_magic));
    at[3] = (uint8_t)type;
    ef_put_le(at + 4, record->len, 4);
    ef_put_le(at + 8, record->sequence, 8);
    ef_put_le(at + 16, record->fragments, 4);
    ef_put_le(at + 20, 0, 4);
    ef_put_le(at + 24, record->samples, 8);
    ef_put_le(at + 32, record->fragments_published, 8);
    ef_put_le(at + 40, record->samples_published, 8);
    ef_put_le(at + 48, record_hash(at, record->data, record->len), 8);
}

/* Bytes of the good record at `at`, 0 when there is none. */
static size_t
read_record(uint8_t *at, size_t left, int type, struct ef_spool_record *ret)
{
    size_t len;

    if (left < RECORD_HEADER_BYTES || memcmp(at, record_magic, sizeof(record_magic)) != 0 ||
        at[3] != type)
        return 0;
    len = (size_t)ef_get_le(at + 4, 4);
    if (len > left - RECORD_HEADER_BYTES ||
        ef_get_le(at + 48, 8) != record_hash(at, at + RECORD_HEADER_BYTES, len))
        return 0;
    ret->sequence = ef_get_le(at + 8, 8);
    ret->fragments = (uint32_t)ef_get_le(at + 16, 4);
    ret->samples = ef_get_le(at + 24, 8);
    ret->fragments_published = ef_get_le(at + 32, 8);
    ret->samples_published = ef_get_le(at + 40, 8);
    ret->data = len > 0 ? at + RECORD_HEADER_BYTES : NULL;
    ret->len = len;
    return RECORD_HEADER_BYTES + len;
}

/* Writes all bytes, or cuts the file back to where it was. */
static bool
write_all(int fd, uint64_t offset, const void *data, size_t len)
{
    const uint8_t *at = data;
    size_t left = len;

    while (left > 0) {
        ssize_t wrote = pwrite(fd, at, left, (off_t)(offset + (len - left)));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            int saved = wrote == 0 ? ENOSPC : errno;
            EF_IGNORE(ftruncate(fd, (off_t)offset) != 0, "a torn end is skipped when reading");
            errno = saved;
            return false;
        }
        at += wrote;
        left -= (size_t)wrote;
    }
    return true;
}

/* Reads a whole file of the folder; gives the bytes (free()), NULL when absent, too large or bad.
 */
static uint8_t *
read_file(const struct ef_spool_folder *folder, const char *name, size_t *ret_len)
{
    int fd = openat(folder->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    uint8_t *data = NULL;
    size_t len = 0;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= (off_t)FILE_BYTES_MAX)
        data = malloc((size_t)st.st_size + 1);
    while (data != NULL && len < (size_t)st.st_size) {
        ssize_t got = read(fd, data + len, (size_t)st.st_size - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    close(fd);
    *ret_len = len;
    return data;
}

static struct segment *
insert_segment(struct ef_spool_folder *folder, uint64_t epoch, uint64_t first)
{
    size_t at = folder->segment_count;

    if (folder->segment_count == folder->segment_cap) {
        size_t cap = folder->segment_cap > 0 ? folder->segment_cap * 2 : 16;
        struct segment *segments = realloc(folder->segments, cap * sizeof(*segments));
        if (segments == NULL)
            return NULL;
        folder->segments = segments;
        folder->segment_cap = cap;
    }
    while (at > 0 &&
           (folder->segments[at - 1].epoch > epoch ||
            (folder->segments[at - 1].epoch == epoch && folder->segments[at - 1].first > first)))
        at--;
    memmove(folder->segments + at + 1, folder->segments + at,
            (folder->segment_count - at) * sizeof(*folder->segments));
    folder->segments[at] = (struct segment){.epoch = epoch, .first = first, .last = first - 1};
    folder->segment_count++;
    if (epoch > folder->newest_epoch)
        folder->newest_epoch = epoch;
    return &folder->segments[at];
}

/* Parses "<20 digits>-<20 digits>.spool" or "<20 digits>.loss". */
static bool
parse_name(const char *name, uint64_t *ret_epoch, uint64_t *ret_first)
{
    char check[NAME_BYTES_MAX];
    char *end = NULL;
    uint64_t epoch, first = 0;

    if (name[0] < '0' || name[0] > '9')
        return false;
    epoch = strtoull(name, &end, 10);
    if (*end == '-') {
        first = strtoull(end + 1, NULL, 10);
        segment_name(check, epoch, first);
    } else {
        loss_name(check, epoch);
    }
    *ret_epoch = epoch;
    *ret_first = first;
    /* Whatever strtoull made of it, the name must be the one that we would give. */
    return epoch > 0 && (first > 0 || *end == '.') && strcmp(check, name) == 0;
}

/* A loss file without segments still makes an epoch: an empty segment stands for it. */
static ef_rc
list_files(struct ef_spool_folder *folder, struct ef_err *err)
{
    int fd = openat(folder->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    ef_rc rc = EF_OK;

    if (dir == NULL) {
        if (fd >= 0)
            close(fd);
        return ef_err_errno(err, "cannot list the spool folder");
    }
    while (rc == EF_OK && (entry = readdir(dir)) != NULL) {
        uint64_t epoch, first;
        if (parse_name(entry->d_name, &epoch, &first) &&
            insert_segment(folder, epoch, first) == NULL)
            rc = ef_err_set(err, EF_ENOMEM, "no memory for the list of spool files");
    }
    closedir(dir);
    return rc;
}

static bool
publisher_from_file(struct ef_spool_folder *folder)
{
    size_t len = 0;
    uint8_t *text = read_file(folder, "publisher", &len);
    bool good = text != NULL && len >= 2 * sizeof(folder->publisher) &&
                ef_hex_read((const char *)text, folder->publisher, sizeof(folder->publisher));

    free(text);
    return good;
}

static bool
publisher_from_segments(struct ef_spool_folder *folder)
{
    for (size_t i = 0; i < folder->segment_count; i++) {
        char name[NAME_BYTES_MAX];
        size_t len = 0;
        uint8_t *data;
        bool good;
        segment_name(name, folder->segments[i].epoch, folder->segments[i].first);
        data = read_file(folder, name, &len);
        good = data != NULL && len >= SEGMENT_HEADER_BYTES && memcmp(data, SEGMENT_MAGIC, 4) == 0;
        if (good)
            memcpy(folder->publisher, data + 24, sizeof(folder->publisher));
        free(data);
        if (good)
            return true;
    }
    return false;
}

ef_rc
ef_spool_new_publisher(uint8_t ret[EF_WIRE_PUBLISHER_BYTES], struct ef_err *err)
{
    ssize_t got;

    /* Waits only while the machine starts. Not libsodium's: it aborts when it gets nothing. */
    do
        got = getrandom(ret, EF_WIRE_PUBLISHER_BYTES, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return ef_err_errno(err, "no random numbers for the publisher's id");
    /* Up to 256 bytes come whole: getrandom(2). */
    return got == EF_WIRE_PUBLISHER_BYTES
               ? EF_OK
               : ef_err_set(err, EF_EIO, "too few random numbers for the publisher's id");
}

static ef_rc
find_publisher(struct ef_spool_folder *folder, struct ef_err *err)
{
    char text[2 * EF_WIRE_PUBLISHER_BYTES + 2];
    int fd;
    bool good;

    if (publisher_from_file(folder))
        return EF_OK;
    if (!publisher_from_segments(folder)) {
        ef_rc rc = ef_spool_new_publisher(folder->publisher, err);
        if (rc != EF_OK)
            return rc;
    }
    ef_hex_write(text, folder->publisher, sizeof(folder->publisher));
    text[sizeof(text) - 2] = '\n';
    fd = openat(folder->dir_fd, "publisher.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    good = fd >= 0 && write_all(fd, 0, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (!good || renameat(folder->dir_fd, "publisher.new", folder->dir_fd, "publisher") != 0)
        return ef_err_errno(err, "cannot write the publisher's id into the spool folder");
    return EF_OK;
}

ef_rc
ef_spool_folder_open(const char *path, uint64_t segment_bytes_max,
                     struct ef_spool_folder **ret_folder, struct ef_err *err)
{
    struct ef_spool_folder *folder = calloc(1, sizeof(*folder));
    ef_rc rc = EF_OK;

    if (folder == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a spool folder");
    folder->fd = folder->lock_fd = folder->dir_fd = -1;
    folder->segment_bytes_max = segment_bytes_max;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        rc = ef_err_errno(err, "cannot make the folder");
        goto out;
    }
    folder->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir_fd >= 0)
        folder->lock_fd = openat(folder->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (folder->lock_fd < 0) {
        rc = ef_err_errno(err, "cannot open the folder");
        goto out;
    }
    if (flock(folder->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        rc = errno == EWOULDBLOCK
                 ? ef_err_set(err, EF_ECONFLICT, "another publisher uses this folder")
                 : ef_err_errno(err, "cannot lock the folder");
        goto out;
    }
    rc = list_files(folder, err);
    if (rc == EF_OK)
        rc = find_publisher(folder, err);
out:
    if (rc != EF_OK) {
        ef_err_prefix(err, "spool '%s'", path);
        ef_spool_folder_free(folder);
        return rc;
    }
    *ret_folder = folder;
    return EF_OK;
}

void
ef_spool_folder_free(struct ef_spool_folder *folder)
{
    if (folder == NULL)
        return;
    if (folder->fd >= 0)
        close(folder->fd);
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    if (folder->dir_fd >= 0)
        close(folder->dir_fd);
    free(folder->segments);
    free(folder);
}

const uint8_t *
ef_spool_folder_publisher(const struct ef_spool_folder *folder)
{
    return folder->publisher;
}

uint64_t
ef_spool_folder_newest_epoch(const struct ef_spool_folder *folder)
{
    return folder->newest_epoch;
}

/* Visits the good records of a file; gives the end of the last one. */
static ef_rc
visit_records(uint8_t *data, size_t len, size_t start, int type, uint64_t epoch,
              ef_spool_visit visit, void *arg, uint64_t *ret_last, size_t *ret_end,
              struct ef_err *err)
{
    size_t at = start;

    *ret_end = start < len ? start : len;
    while (at < len) {
        struct ef_spool_record record = {.epoch = epoch};
        size_t bytes = read_record(data + at, len - at, type, &record);
        ef_rc rc;
        if (bytes == 0) { /* damage: the next record is found by its first bytes */
            uint8_t *next = memmem(data + at + 1, len - at - 1, record_magic, sizeof(record_magic));
            if (next == NULL)
                break;
            at = (size_t)(next - data);
            continue;
        }
        if (record.sequence > *ret_last || type == TYPE_LOSS) {
            rc = visit(arg, &record, err);
            if (rc != EF_OK)
                return rc;
            *ret_last = record.sequence;
        }
        at += bytes;
        *ret_end = at;
    }
    return EF_OK;
}

static ef_rc
load_losses(struct ef_spool_folder *folder, uint64_t epoch, ef_spool_visit visit, void *arg,
            struct ef_err *err)
{
    char name[NAME_BYTES_MAX];
    size_t len = 0, end;
    uint64_t last = 0;
    uint8_t *data;
    ef_rc rc;

    loss_name(name, epoch);
    data = read_file(folder, name, &len);
    if (data == NULL)
        return EF_OK;
    rc = visit_records(data, len, 0, TYPE_LOSS, epoch, visit, arg, &last, &end, err);
    free(data);
    return rc;
}

static ef_rc
load_segment(struct ef_spool_folder *folder, size_t index, bool newest, ef_spool_visit visit,
             void *arg, struct ef_err *err)
{
    struct segment *segment = &folder->segments[index];
    uint64_t epoch = segment->epoch, last = segment->first - 1;
    char name[NAME_BYTES_MAX];
    size_t len = 0, end = 0;
    uint8_t *data;
    ef_rc rc;

    if (segment->first == 0)
        return EF_OK; /* stands for a loss file */
    segment_name(name, epoch, segment->first);
    data = read_file(folder, name, &len);
    if (data == NULL)
        return EF_OK; /* what it held shows as a gap */
    rc = visit_records(data, len, SEGMENT_HEADER_BYTES, TYPE_BATCH, epoch, visit, arg, &last, &end,
                       err);
    free(data);
    folder->segments[index].last = last;
    if (rc == EF_OK && newest && end < len) {
        int fd = openat(folder->dir_fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        EF_IGNORE(fd >= 0 && ftruncate(fd, (off_t)end) != 0, "it is skipped again next time");
        if (fd >= 0)
            close(fd);
    }
    return rc;
}

/* First sequence of the epoch whose segments begin at `index`; 0 = no segment. */
static uint64_t
first_of_epoch(const struct ef_spool_folder *folder, size_t index)
{
    uint64_t epoch = folder->segments[index].epoch;

    for (; index < folder->segment_count && folder->segments[index].epoch == epoch; index++) {
        if (folder->segments[index].first != 0)
            return folder->segments[index].first;
    }
    return 0;
}

ef_rc
ef_spool_folder_load(struct ef_spool_folder *folder, size_t epochs_max, ef_spool_visit visit_first,
                     ef_spool_visit visit_batch, ef_spool_visit visit_loss, void *arg,
                     struct ef_err *err)
{
    size_t count = folder->segment_count, epochs = 0;
    /* Visiting may remove segments (the bound), so the list is walked by value. */
    struct segment *list = malloc((count + 1) * sizeof(*list));
    ef_rc rc = EF_OK;

    if (list == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory to load the spool");
    if (count > 0)
        memcpy(list, folder->segments, count * sizeof(*list));
    for (size_t i = 0; i < count && rc == EF_OK; i++) {
        bool oldest = i == 0 || list[i - 1].epoch != list[i].epoch;
        bool newest = i + 1 == count || list[i + 1].epoch != list[i].epoch;
        size_t at = 0;
        if (oldest && ++epochs > epochs_max)
            break; /* the rest waits for the next life */
        while (at < folder->segment_count && (folder->segments[at].epoch != list[i].epoch ||
                                              folder->segments[at].first != list[i].first))
            at++;
        if (at == folder->segment_count)
            continue;
        if (oldest) {
            struct ef_spool_record first = {.epoch = list[i].epoch,
                                            .sequence = first_of_epoch(folder, at)};
            rc = visit_first(arg, &first, err);
            if (rc == EF_OK)
                rc = load_losses(folder, list[i].epoch, visit_loss, arg, err);
        }
        if (rc == EF_OK)
            rc = load_segment(folder, at, newest, visit_batch, arg, err);
    }
    free(list);
    return rc;
}

static ef_rc
open_segment(struct ef_spool_folder *folder, uint64_t epoch, uint64_t first, struct ef_err *err)
{
    uint8_t header[SEGMENT_HEADER_BYTES] = SEGMENT_MAGIC;
    char name[NAME_BYTES_MAX];
    int fd;

    segment_name(name, epoch, first);
    fd = openat(folder->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return ef_err_errno(err, "cannot make the spool file '%s'", name);
    memset(header + 4, 0, 4);
    ef_put_le(header + 8, epoch, 8);
    ef_put_le(header + 16, first, 8);
    memcpy(header + 24, folder->publisher, sizeof(folder->publisher));
    if (!write_all(fd, 0, header, sizeof(header)) || insert_segment(folder, epoch, first) == NULL) {
        ef_rc rc = ef_err_errno(err, "cannot write the spool file '%s'", name);
        close(fd);
        unlinkat(folder->dir_fd, name, 0);
        return rc;
    }
    if (folder->fd >= 0)
        close(folder->fd);
    folder->fd = fd;
    folder->fd_epoch = epoch;
    folder->fd_bytes = sizeof(header);
    return EF_OK;
}

static struct segment *
newest_segment(struct ef_spool_folder *folder, uint64_t epoch)
{
    for (size_t i = folder->segment_count; i > 0; i--) {
        if (folder->segments[i - 1].epoch == epoch)
            return &folder->segments[i - 1];
    }
    return NULL;
}

ef_rc
ef_spool_folder_append(struct ef_spool_folder *folder, const struct ef_spool_record *record,
                       struct ef_err *err)
{
    uint8_t header[RECORD_HEADER_BYTES];
    struct segment *segment;

    if (folder->fd < 0 || folder->fd_epoch != record->epoch ||
        folder->fd_bytes >= folder->segment_bytes_max) {
        ef_rc rc = open_segment(folder, record->epoch, record->sequence, err);
        if (rc != EF_OK)
            return rc;
    }
    write_record_header(header, TYPE_BATCH, record);
    /* Content first: without its header the record does not exist, so a kill between is no harm. */
    if (!write_all(folder->fd, folder->fd_bytes + sizeof(header), record->data, record->len) ||
        !write_all(folder->fd, folder->fd_bytes, header, sizeof(header))) {
        ef_rc rc = ef_err_errno(err, "cannot write to the spool");
        EF_IGNORE(ftruncate(folder->fd, (off_t)folder->fd_bytes) != 0, "skipped when reading");
        return rc;
    }
    folder->fd_bytes += sizeof(header) + record->len;
    segment = newest_segment(folder, record->epoch);
    if (segment != NULL)
        segment->last = record->sequence;
    return EF_OK;
}

/* Writes loss records at the end of a file, or into a new one. */
static bool
write_losses(const struct ef_spool_folder *folder, const char *name, int flags,
             const struct ef_spool_record *records, size_t count)
{
    int fd = openat(folder->dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    bool good = end >= 0;

    for (size_t i = 0; i < count && good; i++, end += RECORD_HEADER_BYTES) {
        uint8_t header[RECORD_HEADER_BYTES];
        write_record_header(header, TYPE_LOSS, &records[i]);
        good = write_all(fd, (uint64_t)end, header, sizeof(header));
    }
    if (fd >= 0)
        close(fd);
    return good;
}

static bool
has_epoch(const struct ef_spool_folder *folder, uint64_t epoch)
{
    for (size_t i = folder->segment_count; i > 0; i--) {
        if (folder->segments[i - 1].epoch == epoch)
            return true;
    }
    return false;
}

ef_rc
ef_spool_folder_append_loss(struct ef_spool_folder *folder, const struct ef_spool_record *record,
                            struct ef_err *err)
{
    char name[NAME_BYTES_MAX];

    loss_name(name, record->epoch);
    if (!write_losses(folder, name, 0, record, 1))
        return ef_err_errno(err, "cannot write to '%s'", name);
    if (!has_epoch(folder, record->epoch) && insert_segment(folder, record->epoch, 0) == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the list of spool files");
    return EF_OK;
}

ef_rc
ef_spool_folder_rewrite_losses(struct ef_spool_folder *folder, uint64_t epoch,
                               const struct ef_spool_record *records, size_t count,
                               struct ef_err *err)
{
    char name[NAME_BYTES_MAX];

    loss_name(name, epoch);
    if (count == 0) {
        unlinkat(folder->dir_fd, name, 0);
        return EF_OK;
    }
    if (!write_losses(folder, "loss.new", O_TRUNC, records, count) ||
        renameat(folder->dir_fd, "loss.new", folder->dir_fd, name) != 0)
        return ef_err_errno(err, "cannot write '%s'", name);
    return EF_OK;
}

static void
remove_segment(struct ef_spool_folder *folder, size_t index, bool newest)
{
    struct segment segment = folder->segments[index];
    char name[NAME_BYTES_MAX];

    if (segment.first != 0) {
        segment_name(name, segment.epoch, segment.first);
        unlinkat(folder->dir_fd, name, 0);
    }
    if (newest && folder->fd >= 0 && folder->fd_epoch == segment.epoch) {
        close(folder->fd);
        folder->fd = -1;
    }
    memmove(folder->segments + index, folder->segments + index + 1,
            (folder->segment_count - index - 1) * sizeof(*folder->segments));
    folder->segment_count--;
}

void
ef_spool_folder_forget(struct ef_spool_folder *folder, uint64_t epoch, uint64_t first_sequence,
                       bool all)
{
    for (size_t i = 0; i < folder->segment_count;) {
        const struct segment *segment = &folder->segments[i];
        bool newest = i + 1 == folder->segment_count || segment[1].epoch != epoch;
        bool active = newest && folder->fd >= 0 && folder->fd_epoch == epoch;
        bool gone;
        if (segment->epoch > epoch)
            break;
        /* A segment that is not the newest ends where the next begins, whatever could be read. */
        gone = segment->epoch == epoch && segment->first != 0 &&
               (newest ? segment->last < first_sequence : segment[1].first <= first_sequence);
        if (gone && active && !all && folder->fd_bytes < SEGMENT_BYTES_KEPT_MAX)
            gone = false;
        if (gone)
            remove_segment(folder, i, newest);
        else
            i++;
    }
}

void
ef_spool_folder_forget_epoch(struct ef_spool_folder *folder, uint64_t epoch)
{
    char name[NAME_BYTES_MAX];

    loss_name(name, epoch);
    unlinkat(folder->dir_fd, name, 0);
    for (size_t i = folder->segment_count; i > 0; i--) {
        if (folder->segments[i - 1].epoch == epoch)
            remove_segment(folder, i - 1, true);
    }
}
