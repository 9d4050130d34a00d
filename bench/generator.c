/* The load generator: one program for every scenario.
 *
 * It reads a plan from stdin (written by generator.py), drives sockets that were connected,
 * opened and set up beforehand and are inherited by number, and prints one JSON object.
 * All frames come ready made; per message it copies nothing on the way out and looks at
 * frame headers, delivery tags and sizes on the way in. Each worker is a thread with its
 * own epoll set. Everything counted is checked: tags without gaps, sizes, redelivered bit.
 *
 * Plan, one line each:
 *   run DURATION_MS DRAIN_MS WAITING: the last is how many messages lie in the queues already
 *   publisher FD WORKER MODE WINDOW LIMIT RATE BACKLOG FAN CYCLE, then CYCLE lines: message STAMP NUMBER HEX
 *   consumer FD WORKER ACK_EVERY SMALLEST_BODY LARGEST_BODY STAMPED REJECTS START_COUNT HEX
 *   churn WORKER PORT LIMIT STEP_COUNT, then per step: step REPLY_COUNT HEX
 * MODE is none, window, batch or tx. The messages of a cycle are sent in turn and may differ in
 * length; STAMP is the offset of eight bytes in one that carry the time of sending, NUMBER that
 * of sixteen for a number in hexadecimal, or -1. START_COUNT is how many basic.consume the
 * consumer itself sends when the clock starts, encoded in HEX; with 0 it was subscribed before.
 */
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MAX_WORKERS = 8, MAX_PEERS = 16384, READ_SIZE = 131072, BLOB_SIZE = 131072, MAX_STEPS = 8 };
enum { SUB_BITS = 6, BUCKETS = 64 << SUB_BITS, TICK_NS = 500000, IDLE_MS = 2 };

typedef enum { NONE, WINDOW, BATCH, TX } mode_t_;
typedef enum { PUBLISHER, CONSUMER, TIMER } role_t_;

typedef struct { /* logarithmic buckets, 1.6 % wide; values in ns */
    uint64_t count, sum, max, bucket[BUCKETS];
} histogram;

typedef struct { /* where in the blob it begins, and where in it the two places to fill are */
    size_t at, size;
    long stamp, number;
} message;

typedef struct peer {
    role_t_ role;
    int fd, worker;
    bool done, wants_write;
    uint8_t *in;
    size_t in_size;
    octets out;
    uint64_t first_ns, last_ns, count; /* count: confirmed or received */
    /* publisher */
    mode_t_ mode;
    uint64_t window, limit, backlog, fan, rate;
    bool has_stamps, has_numbers;
    uint8_t *blob;
    size_t blob_size, blob_messages;
    message *messages; /* those in the blob */
    uint64_t granted, goal, sent_octets, base; /* goal: where in the stream the granted end */
    bool stopped;
    uint8_t *confirmed;
    uint64_t *sent_at;
    uint64_t ring;
    struct peer *timed; /* of a TIMER: the publisher it paces */
    /* consumer */
    uint64_t ack_every, smallest, largest, body_left, body_bytes, acked;
    bool stamped, rejects, in_content, header_next, body_begins;
    int starts_due; /* consume-ok to come */
    uint16_t channel;
} peer;

typedef struct {
    pthread_t thread;
    int epoll, index, used;
    histogram confirm, delivery;
    uint64_t cycles, limit, first_ns, last_ns;
    int port, step_count;
    octets step[MAX_STEPS];
    int replies[MAX_STEPS];
} worker;

static peer peers[MAX_PEERS];
static worker workers[MAX_WORKERS];
static int peer_count, publisher_count;
static uint64_t duration_ns, drain_ns, start_ns, stop_ns, dead_ns;
static atomic_uint_fast64_t received_total, expected_total, promised_total;
static atomic_int publishers_stopped, failed;
static char failure[600];
static pthread_barrier_t gate;

static void fail(const char *format, ...) {
    if (atomic_exchange(&failed, 1)) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    for (char *c = failure; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32 || (unsigned char)*c > 126) *c = '\'';
}

static void record(histogram *h, uint64_t ns) {
    int top = 63 - __builtin_clzll(ns | 1);
    uint64_t index = ns;
    if (top > SUB_BITS) {
        int shift = top - SUB_BITS;
        index = ((uint64_t)(shift + 1) << SUB_BITS) + ((ns >> shift) & ((1u << SUB_BITS) - 1));
    }
    h->bucket[index < BUCKETS ? index : BUCKETS - 1]++;
    h->count++;
    h->sum += ns;
    if (ns > h->max) h->max = ns;
}

static double percentile_us(const histogram *h, double part) {
    uint64_t rank = (uint64_t)((double)h->count * part), seen = 0;
    for (uint64_t i = 0; i < BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen > rank) {
            if (i < (2u << SUB_BITS)) return (double)i / 1000;
            uint64_t shift = (i >> SUB_BITS) - 1;
            double low = (double)(((1u << SUB_BITS) | (i & ((1u << SUB_BITS) - 1))) << shift);
            return (low + (double)(1ull << shift) / 2) / 1000;
        }
    }
    return (double)h->max / 1000;
}

static void watch(peer *p, bool write) {
    if (p->wants_write == write) return;
    p->wants_write = write;
    struct epoll_event e = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = p};
    epoll_ctl(workers[p->worker].epoll, EPOLL_CTL_MOD, p->fd, &e);
}

/* ---- publisher ---- */

static uint64_t allowance(peer *p, uint64_t now) {
    if (p->stopped || now >= stop_ns) return 0;
    uint64_t outstanding = p->granted - p->count, most = p->blob_messages;
    if (p->mode == NONE) {
        if (p->backlog) {
            uint64_t promised = atomic_load(&promised_total), here = atomic_load(&received_total);
            if (promised - here >= p->backlog) return 0;
            uint64_t room = (p->backlog - (promised - here)) / p->fan;
            if (room < most) most = room;
        }
    } else if (p->mode == WINDOW) {
        most = p->window > outstanding ? p->window - outstanding : 0;
    } else {
        most = outstanding ? 0 : p->window;
    }
    if (p->mode != NONE) {
        uint64_t room = p->ring - (p->granted - p->base);
        if (most > room) most = room;
        if (p->fan && p->backlog) {
            uint64_t promised = atomic_load(&promised_total), here = atomic_load(&received_total);
            if (promised - here >= p->backlog) return 0;
        }
    }
    if (p->rate) {
        uint64_t due = (uint64_t)((double)(now - p->first_ns) * (double)p->rate / 1e9) + 1;
        uint64_t paced = due > p->granted ? due - p->granted : 0;
        if (most > paced) most = paced;
    }
    if ((p->has_stamps || p->has_numbers) && most > p->blob_messages) most = p->blob_messages;
    if (most > p->limit - p->granted) most = p->limit - p->granted;
    return most;
}

static void put_number(uint8_t *at, uint64_t number) {
    for (int i = 15; i >= 0; i--, number >>= 4) at[i] = (uint8_t)"0123456789abcdef"[number & 15];
}

static void grant(peer *p, uint64_t more, uint64_t now) {
    if (!p->granted) p->first_ns = now;
    if (p->mode != NONE)
        for (uint64_t k = p->granted; k < p->granted + more; k++) {
            p->sent_at[k & (p->ring - 1)] = now;
            p->confirmed[k & (p->ring - 1)] = 0;
        }
    size_t at = p->granted % p->blob_messages;
    if (p->has_stamps || p->has_numbers)
        for (uint64_t k = p->granted; k < p->granted + more; k++) {
            const message *m = &p->messages[at];
            if (m->stamp >= 0) memcpy(p->blob + m->at + m->stamp, &now, 8);
            if (m->number >= 0) put_number(p->blob + m->at + m->number, k);
            if (++at == p->blob_messages) at = 0;
        }
    p->granted += more;
    p->goal = p->granted / p->blob_messages * p->blob_size + p->messages[p->granted % p->blob_messages].at;
    atomic_fetch_add(&promised_total, more * p->fan);
}

/* Decides that nothing more will be sent; once all is written, the total is fixed. */
static void settle_publisher(peer *p, uint64_t now) {
    if (p->stopped || p->sent_octets < p->goal) return;
    if (now < stop_ns && p->granted < p->limit) return;
    p->stopped = true;
    if (!p->last_ns) p->last_ns = now;
    atomic_fetch_add(&expected_total, p->granted * p->fan);
    atomic_fetch_add(&publishers_stopped, 1);
}

static void publish(peer *p) {
    for (;;) {
        uint64_t now = now_ns();
        if (p->sent_octets == p->goal) {
            if (p->rate && !p->granted) p->first_ns = now;
            uint64_t more = allowance(p, now);
            if (!more) {
                settle_publisher(p, now);
                watch(p, false);
                return;
            }
            grant(p, more, now);
        }
        size_t offset = p->sent_octets % p->blob_size, size = p->blob_size - offset;
        if (size > p->goal - p->sent_octets) size = p->goal - p->sent_octets;
        ssize_t n = send(p->fd, p->blob + offset, size, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) fail("send: %s", strerror(errno));
            watch(p, true);
            return;
        }
        p->sent_octets += (uint64_t)n;
        if (p->mode == NONE) p->last_ns = now;
    }
}

static void confirm_one(peer *p, uint64_t k, uint64_t now) {
    uint64_t slot = k & (p->ring - 1);
    if (p->confirmed[slot]) return fail("message %lu was confirmed twice", (unsigned long)(k + 1));
    p->confirmed[slot] = 1;
    p->count++;
    record(&workers[p->worker].confirm, now - p->sent_at[slot]);
}

static void confirm(peer *p, uint64_t tag, bool multiple, uint64_t now) {
    if (tag == 0 && multiple) tag = p->granted;
    if (tag == 0 || tag > p->granted || tag <= p->base)
        return fail("confirm for %lu, sent %lu, confirmed up to %lu", (unsigned long)tag,
                    (unsigned long)p->granted, (unsigned long)p->base);
    if (multiple) {
        for (uint64_t k = p->base; k < tag; k++)
            if (!p->confirmed[k & (p->ring - 1)]) confirm_one(p, k, now);
        p->base = tag;
    } else {
        confirm_one(p, tag - 1, now);
    }
    while (p->base < p->granted && p->confirmed[p->base & (p->ring - 1)]) p->base++;
    p->last_ns = now;
}

static void close_reason(const frame *f, const char *what) {
    int code = get16(f->body + 4), size = f->body[6];
    fail("%s closed by the server: %d %.*s", what, code, size, (const char *)f->body + 7);
}

static bool closed_by_server(const frame *f) {
    if (f->method == CHANNEL_CLOSE) close_reason(f, "channel");
    else if (f->method == CONNECTION_CLOSE) close_reason(f, "connection");
    else return false;
    return true;
}

static void publisher_frame(peer *p, const frame *f, uint64_t now) {
    if (f->method == BASIC_ACK && p->mode != TX) {
        confirm(p, get64(f->body + 4), f->body[12] & 1, now);
    } else if (f->method == TX_COMMIT_OK && p->mode == TX) {
        confirm(p, p->granted, true, now);
    } else if (f->type != FRAME_HEARTBEAT && !closed_by_server(f)) {
        fail("a publisher got frame type %d, method %u.%u", f->type, f->method >> 16,
             f->method & 0xFFFF);
    }
}

/* ---- consumer ---- */

static void put_ack(peer *p, uint64_t tag, bool multiple) {
    uint8_t *a = reserve(&p->out, 21);
    a[0] = FRAME_METHOD;
    put16(a + 1, p->channel);
    put32(a + 3, 13);
    put32(a + 7, p->rejects ? BASIC_REJECT : BASIC_ACK);
    put64(a + 11, tag);
    a[19] = multiple && !p->rejects; /* of a reject the bit would say: back into the queue */
    a[20] = FRAME_END;
    p->out.size += 21;
    p->acked = tag;
}

static void delivered(peer *p, uint64_t now) {
    p->in_content = false;
    if (!p->count++) p->first_ns = now;
    p->last_ns = now;
    if (p->ack_every == 1) put_ack(p, p->count, false);
    else if (p->ack_every && p->count % p->ack_every == 0) put_ack(p, p->count, true);
}

static void consumer_frame(peer *p, const frame *f, uint64_t now) {
    if (f->method == BASIC_DELIVER && !p->in_content) {
        const uint8_t *tag = f->body + 5 + f->body[4];
        if (get64(tag) != p->count + 1)
            fail("delivery tag %lu where %lu was due", (unsigned long)get64(tag),
                 (unsigned long)(p->count + 1));
        if (tag[8]) fail("delivery %lu is marked redelivered", (unsigned long)(p->count + 1));
        p->channel = f->channel;
        p->in_content = p->header_next = true;
    } else if (f->type == FRAME_HEADER && p->in_content && p->header_next) {
        p->header_next = false;
        p->body_begins = true;
        p->body_left = get64(f->body + 4);
        p->body_bytes += p->body_left;
        if (p->body_left < p->smallest || p->body_left > p->largest)
            fail("a body of %lu bytes, sent were %lu to %lu", (unsigned long)p->body_left,
                 (unsigned long)p->smallest, (unsigned long)p->largest);
        if (!p->body_left) delivered(p, now);
    } else if (f->type == FRAME_BODY && p->in_content && !p->header_next) {
        if (p->stamped && p->body_begins) {
            uint64_t sent;
            if (f->size < sizeof sent) return fail("a body too short for its time of sending");
            memcpy(&sent, f->body, sizeof sent);
            record(&workers[p->worker].delivery, now - sent);
        }
        p->body_begins = false;
        if (f->size > p->body_left) return fail("a body frame longer than the body");
        p->body_left -= f->size;
        if (!p->body_left) delivered(p, now);
    } else if (f->method == BASIC_CONSUME_OK && p->starts_due) {
        p->starts_due--;
    } else if (f->type != FRAME_HEARTBEAT && !closed_by_server(f)) {
        fail("a consumer got frame type %d, method %u.%u", f->type, f->method >> 16,
             f->method & 0xFFFF);
    }
}

static void flush(peer *p) {
    while (p->out.sent < p->out.size) {
        ssize_t n = send(p->fd, p->out.data + p->out.sent, p->out.size - p->out.sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) fail("send: %s", strerror(errno));
            break;
        }
        p->out.sent += (size_t)n;
    }
    watch(p, p->out.sent < p->out.size);
}

/* ---- the loop of a worker ---- */

static void readable(peer *p) {
    ssize_t n = recv(p->fd, p->in + p->in_size, READ_SIZE - p->in_size, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return fail("the server ended a connection: %s", n ? strerror(errno) : "end of file");
    p->in_size += (size_t)n;
    uint64_t now = now_ns(), before = p->count;
    size_t at = 0;
    frame f;
    long taken;
    while ((taken = next_frame(p->in + at, p->in_size - at, &f)) > 0) {
        if (p->role == PUBLISHER) publisher_frame(p, &f, now);
        else consumer_frame(p, &f, now);
        at += (size_t)taken;
    }
    if (taken < 0) return fail("the server sent what is no frame");
    if (p->in_size == READ_SIZE && !at) return fail("a frame larger than frame_max");
    memmove(p->in, p->in + at, p->in_size - at);
    p->in_size -= at;
    if (p->role == CONSUMER) {
        atomic_fetch_add(&received_total, p->count - before);
        flush(p);
    } else {
        publish(p);
    }
}

static bool finished(peer *p, uint64_t now) {
    if (p->role == TIMER) return p->timed->done;
    if (p->role == PUBLISHER) {
        if (!p->stopped && !p->wants_write) publish(p);
        settle_publisher(p, now);
        return p->stopped && (p->mode == NONE || p->count == p->granted);
    }
    if (atomic_load(&publishers_stopped) < publisher_count) return false;
    uint64_t received = atomic_load(&received_total), expected = atomic_load(&expected_total);
    if (received > expected)
        fail("%lu deliveries of %lu", (unsigned long)received, (unsigned long)expected);
    if (received < expected) return false;
    if (p->ack_every && p->acked < p->count) put_ack(p, p->count, true);
    flush(p);
    return p->out.sent == p->out.size;
}

static void drive(worker *w) {
    struct epoll_event events[64];
    for (int i = 0; i < peer_count; i++)
        if (peers[i].worker == w->index && peers[i].role == PUBLISHER) publish(&peers[i]);
        else if (peers[i].worker == w->index && peers[i].role == CONSUMER) flush(&peers[i]);
    while (!atomic_load(&failed)) {
        int n = epoll_wait(w->epoll, events, 64, IDLE_MS);
        for (int i = 0; i < n; i++) {
            peer *p = events[i].data.ptr;
            if (p->role == TIMER) {
                uint64_t ticks;
                if (read(p->fd, &ticks, 8) == 8 && !p->timed->done) publish(p->timed);
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(p);
            if (events[i].events & EPOLLOUT) {
                if (p->role == PUBLISHER) publish(p);
                else flush(p);
            }
        }
        uint64_t now = now_ns();
        bool all = true, is_sent = atomic_load(&publishers_stopped) == publisher_count;
        for (int i = 0; i < peer_count; i++) {
            peer *p = &peers[i];
            if (p->worker != w->index || p->done) continue;
            /* Asked after every wake-up: of many consumers only when there can be an end. */
            if (p->role == CONSUMER ? is_sent : n < 64 || now > stop_ns) p->done = finished(p, now);
            all = all && p->done;
        }
        if (all) return;
        if (now > dead_ns)
            return fail("not done in time: %lu deliveries of %lu",
                        (unsigned long)atomic_load(&received_total),
                        (unsigned long)atomic_load(&promised_total));
    }
}

/* ---- connections that come and go ---- */

static bool exchange(int fd, const octets *step, int replies) {
    uint8_t in[16384];
    size_t size = 0;
    if (send(fd, step->data, step->size, MSG_NOSIGNAL) != (ssize_t)step->size) return false;
    while (replies > 0) {
        ssize_t n = recv(fd, in + size, sizeof in - size, 0);
        if (n <= 0) return false;
        size += (size_t)n;
        size_t at = 0;
        frame f;
        long taken;
        while ((taken = next_frame(in + at, size - at, &f)) > 0) {
            if (closed_by_server(&f)) return false;
            at += (size_t)taken;
            replies--;
        }
        if (taken < 0) return false;
        memmove(in, in + at, size - at);
        size -= at;
    }
    return replies == 0 && size == 0;
}

static void churn(worker *w) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)w->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    w->first_ns = w->last_ns = now_ns();
    while (w->last_ns < stop_ns && w->cycles < w->limit && !atomic_load(&failed)) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        struct timeval patience = {.tv_sec = 10};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            return fail("connect: %s", strerror(errno));
        for (int i = 0; i < w->step_count; i++)
            if (!exchange(fd, &w->step[i], w->replies[i]))
                return fail("connection %lu ended in step %d", (unsigned long)w->cycles, i);
        /* All is said, close-ok included: a reset leaves no port in TIME_WAIT behind. */
        struct linger at_once = {.l_onoff = 1, .l_linger = 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(fd);
        uint64_t now = now_ns();
        record(&w->confirm, now - w->last_ns);
        w->last_ns = now;
        w->cycles++;
    }
}

static void *run_worker(void *argument) {
    worker *w = argument;
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    if (w->step_count) churn(w);
    else drive(w);
    return NULL;
}

/* ---- the plan ---- */

static void refuse(const char *why) {
    fprintf(stderr, "bad plan: %s\n", why);
    exit(2);
}

static void unhex(const char *text, octets *out) {
    static const char digits[] = "0123456789abcdef";
    for (; text[0] > ' ' && text[1] > ' '; text += 2) {
        const char *high = strchr(digits, text[0]), *low = strchr(digits, text[1]);
        if (!high || !low) refuse("not hexadecimal");
        uint8_t octet = (uint8_t)((high - digits) << 4 | (low - digits));
        append(out, &octet, 1);
    }
}

static worker *worker_at(int index) {
    if (index < 0 || index >= MAX_WORKERS) refuse("worker number");
    worker *w = &workers[index];
    w->index = index;
    w->used = 1;
    return w;
}

static void adopt(peer *p) {
    worker *w = worker_at(p->worker);
    if (!w->epoll && (w->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0) refuse("epoll");
    if (p->role != TIMER && !(p->in = malloc(READ_SIZE))) refuse("memory");
    fcntl(p->fd, F_SETFL, fcntl(p->fd, F_GETFL) | O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, p->fd, &e)) refuse("not a socket");
}

static peer *new_peer(role_t_ role) {
    if (peer_count == MAX_PEERS) refuse("too many connections");
    peer *p = &peers[peer_count++];
    p->role = role;
    return p;
}

static void pace(peer *timed) {
    peer *p = new_peer(TIMER);
    p->timed = timed;
    p->worker = timed->worker;
    p->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct itimerspec every = {{0, TICK_NS}, {0, TICK_NS}};
    timerfd_settime(p->fd, 0, &every, NULL);
    adopt(p);
}

static peer *plan_publisher(const char *line, unsigned long *cycle) {
    peer *p = new_peer(PUBLISHER);
    char mode[16];
    if (sscanf(line, "publisher %d %d %15s %lu %lu %lu %lu %lu %lu", &p->fd, &p->worker, mode,
               &p->window, &p->limit, &p->rate, &p->backlog, &p->fan, cycle) < 9 || !*cycle)
        refuse("publisher");
    p->mode = !strcmp(mode, "window") ? WINDOW : !strcmp(mode, "batch") ? BATCH : !strcmp(mode, "tx") ? TX : NONE;
    if (!(p->messages = calloc(*cycle, sizeof *p->messages))) refuse("memory");
    for (p->ring = 64; p->ring < p->window * 4; p->ring *= 2) continue;
    p->sent_at = calloc(p->ring, sizeof *p->sent_at);
    p->confirmed = calloc(p->ring, 1);
    if (!p->sent_at || !p->confirmed) refuse("memory");
    publisher_count++;
    return p;
}

static void plan_message(peer *p, const char *line, octets *once) {
    message *m = &p->messages[p->blob_messages++];
    int at = 0;
    m->at = once->size;
    if (sscanf(line, "message %ld %ld %n", &m->stamp, &m->number, &at) < 2 || !at) refuse("message");
    unhex(line + at, once);
    m->size = once->size - m->at;
    if (m->stamp + 8 > (long)m->size || m->number + 16 > (long)m->size) refuse("nothing fits there");
    p->has_stamps |= m->stamp >= 0;
    p->has_numbers |= m->number >= 0;
}

/* A short cycle is repeated until the blob is worth a write. */
static void fill_blob(peer *p, octets *once) {
    size_t cycle = p->blob_messages, copies = BLOB_SIZE / once->size ? BLOB_SIZE / once->size : 1;
    if (!once->size) refuse("a publisher without messages");
    p->blob_size = copies * once->size;
    p->blob_messages = copies * cycle;
    p->messages = realloc(p->messages, p->blob_messages * sizeof *p->messages);
    if (!p->messages || !(p->blob = malloc(p->blob_size))) refuse("memory");
    for (size_t i = 0; i < copies; i++) memcpy(p->blob + i * once->size, once->data, once->size);
    for (size_t i = cycle; i < p->blob_messages; i++) {
        p->messages[i] = p->messages[i % cycle];
        p->messages[i].at += i / cycle * once->size;
    }
    adopt(p);
    if (p->rate) pace(p);
}

static void plan_consumer(const char *line) {
    peer *p = new_peer(CONSUMER);
    int stamped, rejects, at = 0;
    if (sscanf(line, "consumer %d %d %lu %lu %lu %d %d %d %n", &p->fd, &p->worker, &p->ack_every,
               &p->smallest, &p->largest, &stamped, &rejects, &p->starts_due, &at) < 8 || !at)
        refuse("consumer");
    p->stamped = stamped;
    p->rejects = rejects;
    unhex(line + at, &p->out);
    adopt(p);
}

static void read_plan(void) {
    char *line = NULL;
    size_t capacity = 0;
    unsigned long cycle = 0; /* messages of the publisher that are still to come */
    octets once = {0};
    peer *publishing = NULL;
    worker *churning = NULL;
    while (getline(&line, &capacity, stdin) > 0) {
        unsigned long a, b, c;
        int index, port, steps, at = 0;
        if (sscanf(line, "run %lu %lu %lu", &a, &b, &c) == 3) {
            duration_ns = a * 1000000u;
            drain_ns = b * 1000000u;
            atomic_store(&expected_total, c);
            atomic_store(&promised_total, c);
        } else if (!strncmp(line, "publisher ", 10) && !cycle) {
            publishing = plan_publisher(line, &cycle);
            once = (octets){0};
        } else if (!strncmp(line, "message ", 8) && cycle) {
            plan_message(publishing, line, &once);
            if (--cycle) continue;
            fill_blob(publishing, &once);
            free(once.data);
        } else if (!strncmp(line, "consumer ", 9)) {
            plan_consumer(line);
        } else if (sscanf(line, "churn %d %d %lu %d", &index, &port, &a, &steps) == 4) {
            churning = worker_at(index);
            churning->port = port;
            churning->limit = a;
        } else if (sscanf(line, "step %d %n", &steps, &at) == 1 && churning && at) {
            if (churning->step_count == MAX_STEPS) refuse("too many steps");
            churning->replies[churning->step_count] = steps;
            unhex(line + at, &churning->step[churning->step_count++]);
        } else {
            refuse(line);
        }
    }
    free(line);
    if (!duration_ns || cycle) refuse("it ends too early");
}

/* ---- the result ---- */

static void print_histogram(const char *name, const histogram *h) {
    printf("\"%s\": {\"count\": %lu, \"mean_us\": %.2f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.2f}, ",
           name, (unsigned long)h->count, h->count ? (double)h->sum / (double)h->count / 1000 : 0,
           percentile_us(h, 0.50), percentile_us(h, 0.99), (double)h->max / 1000);
}

static void add_histogram(histogram *to, const histogram *from) {
    for (int i = 0; i < BUCKETS; i++) to->bucket[i] += from->bucket[i];
    to->count += from->count;
    to->sum += from->sum;
    if (from->max > to->max) to->max = from->max;
}

static void print_result(void) {
    static histogram confirms, deliveries;
    uint64_t cycles = 0, first_ns = UINT64_MAX, last_ns = 0;
    const char *comma = "";
    for (int i = 0; i < MAX_WORKERS; i++) {
        add_histogram(&confirms, &workers[i].confirm);
        add_histogram(&deliveries, &workers[i].delivery);
        cycles += workers[i].cycles;
        if (workers[i].cycles && workers[i].first_ns < first_ns) first_ns = workers[i].first_ns;
        if (workers[i].last_ns > last_ns) last_ns = workers[i].last_ns;
    }
    printf("{\"error\": \"%s\", \"cycles\": %lu, \"churn_s\": %.6f, ", failure, (unsigned long)cycles,
           cycles ? (double)(last_ns - first_ns) / 1e9 : 0);
    print_histogram("confirm", &confirms);
    print_histogram("delivery", &deliveries);
    printf("\"publishers\": [");
    for (int i = 0; i < peer_count; i++) {
        peer *p = &peers[i];
        if (p->role != PUBLISHER) continue;
        printf("%s{\"sent\": %lu, \"confirmed\": %lu, \"first_s\": %.6f, \"last_s\": %.6f}", comma,
               (unsigned long)p->granted, (unsigned long)(p->mode == NONE ? 0 : p->count),
               (double)(p->first_ns - start_ns) / 1e9,
               p->last_ns ? (double)(p->last_ns - start_ns) / 1e9 : 0);
        comma = ", ";
    }
    printf("], \"consumers\": [");
    comma = "";
    for (int i = 0; i < peer_count; i++) {
        peer *p = &peers[i];
        if (p->role != CONSUMER) continue;
        printf("%s{\"received\": %lu, \"acked\": %lu, \"body_bytes\": %lu, \"first_s\": %.6f, \"last_s\": %.6f}",
               comma, (unsigned long)p->count, (unsigned long)p->acked, (unsigned long)p->body_bytes,
               p->count ? (double)(p->first_ns - start_ns) / 1e9 : 0,
               p->count ? (double)(p->last_ns - start_ns) / 1e9 : 0);
        comma = ", ";
    }
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("], \"generator_cpu_s\": %.6f}\n",
           (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
}

int main(void) {
    unsigned used = 0;
    read_plan();
    for (int i = 0; i < MAX_WORKERS; i++) used += (unsigned)workers[i].used;
    pthread_barrier_init(&gate, NULL, used + 1);
    for (int i = 0; i < MAX_WORKERS; i++)
        if (workers[i].used && pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]))
            refuse("threads");
    pthread_barrier_wait(&gate);
    start_ns = now_ns();
    stop_ns = start_ns + duration_ns;
    dead_ns = stop_ns + drain_ns;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < MAX_WORKERS; i++)
        if (workers[i].used) pthread_join(workers[i].thread, NULL);
    print_result();
    return atomic_load(&failed) ? 1 : 0;
}
