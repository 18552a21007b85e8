/* A ring from its first item to its end: ring/sender.hpp, ring/receiver.hpp, push1 data, watermark.
 * Fixed slots, positions counted in items; both ends poll.
 *
 *   Producer   makes room, lays an item, pushes; flushes; says goodbye over the socket
 *   Consumer   looks at the mark, reads, gives back; closes when the final position is reached
 *   devices    execute requests in order, word by word, at any time; completions come later still
 *
 * Modelled: both rings, stranded items, batches, runs up to the end of the ring, completions of
 * some requests only, READs and WRITEs of positions that tear, devices with and without order
 * inside of a WRITE, space by pull (design 1) and by push (design 2); and both ends that store.
 * Left out: frames and skips, slots of the send queue (window.pml), sleeping (both_sleep.pml), the
 * thread of a mover.
 *
 * Settings: items (how many pass), ring (1 to 3 items), push (1: credit is pushed, 0: pulled),
 * in_order, quarter (items between signaled WRITEs), step (items between credits),
 * store (0: ends post; 1: they store, and items are laid where the consumer reads them; 2: they
 * store, and what is laid in the producer's ring is copied, as a mover does).
 */
#include "common.pml"

#define MOST 3 /* items in a ring */
#define LONGEST 12 /* requests on their way */

/* Names for what must hold; no part of the state. */
hidden byte slot_is_free, sent_before_reuse, run_ends_in_the_ring, item_is_whole, no_item_is_lost,
            claim_is_possible;
#define check(name, condition) name = condition; assert(name)

local byte items, ring, push, in_order, quarter, step, store;

mtype = { RUN, MARK, READ, SETTLE, CREDIT };

/* Requests on their way, executed ones, completions. `cover`: where the producer's ring is sent up
   to when this completes, plus 1; 0: no completion. */
chan to_consumer = [LONGEST] of { mtype, byte, byte, byte }; /* kind, position, items, cover */
chan executed = [LONGEST] of { mtype, byte, byte };          /* kind, cover, word of a READ */
chan sent = [LONGEST] of { mtype, byte, byte };
chan copied = [1] of { bit };
chan to_producer = [1] of { byte };                                /* a credit: at most one */
chan credited = [1] of { bit };                                    /* its completion */

/* The producer's memory. An item is its position plus 1. */
byte own[MOST];
byte credit;

/* The consumer's memory. */
byte payload[MOST], mark[MOST];
byte progress;

chan goodbye = [1] of { byte }; /* the socket: the last words */
byte taken;                     /* items the consumer has really read */

/* ---- the producer */

byte produced, intransit, transferred, covered, known; /* known: consumed, as far as is known */
byte room;
bool straight, reading, answered;
bool changed; /* the last calls learned something */
byte answer;

inline learn(word) {
    if
    :: word == TORN && wrong(torn_believed) -> known = intransit
    :: word != TORN && word > known ->
        check(claim_is_possible, word <= intransit);
        known = word;
        changed = true
    :: else
    fi
}

inline look_for_space() {
    if
    :: push -> learn(credit)
    :: !push && answered -> answered = false; reading = false; learn(answer); answer = 0
    :: else
    fi
}

inline reap() {
    do
    :: sent?kind, cover, word ->
        transferred = cover - 1;
        changed = true;
        if
        :: kind == READ -> answered = true; answer = word
        :: else
        fi
    :: empty(sent) -> kind = 0; cover = 0; word = 0; break
    od
}

inline refresh() {
    if
    :: !push && store && !wrong(never_asks) -> answer = progress; answered = true /* a load */
    :: !push && !store && !reading && !wrong(never_asks) ->
        reading = true;
        covered = intransit;
        to_consumer!READ, 0, 0, intransit + 1
    :: else
    fi;
    reap();
    look_for_space()
}

inline settle() {
    if
    :: !store && covered != intransit && !wrong(never_settles) ->
        covered = intransit;
        to_consumer!SETTLE, 0, 0, intransit + 1
    :: else
    fi;
    reap()
}

/* A run is copied, in any order but for its first mark, which is stored behind the rest. What is the
   device otherwise does it, and this thread waits. */
inline copy() {
    to_consumer!RUN, intransit, count, (wrong(copied_in_any_order) -> cover : 0);
    if
    :: wrong(copied_in_any_order)
    :: else -> to_consumer!MARK, intransit, 0, cover
    fi;
    copied?_
}

/* The batch that was laid in place is shown by its first mark, which was held back. */
inline show_batch() {
    if
    :: intransit != produced ->
        mark[intransit % ring] = intransit + 1;
        intransit = produced;
        transferred = produced;
        covered = produced
    :: else
    fi
}

/* Lays an item where the consumer reads it. Of a batch, nobody looks for the second one before the
   first is shown: so its words come in any order. */
inline lay_in_place() {
    if
    :: wrong(mark_before_item) || intransit != produced ->
        mark[produced % ring] = produced + 1
    :: skip
    fi;
    check(slot_is_free, produced < taken + ring);
    payload[produced % ring] = produced + 1;
    atomic {
        if
        :: intransit != produced || wrong(first_not_held) -> mark[produced % ring] = produced + 1
        :: else
        fi;
        produced++;
        room--
    }
}

/* One run: `count` items from intransit on. */
inline send_run(whole) {
    cover = (intransit + count - covered >= quarter || store -> intransit + count + 1 : 0);
    check(run_ends_in_the_ring, intransit % ring + count <= ring);
    if
    :: store == 2 -> copy() /* nothing is in flight behind it */
    :: store != 2 && whole -> to_consumer!RUN, intransit, count, cover
    :: store != 2 && !whole ->
        to_consumer!RUN, intransit, count, 0;
        to_consumer!MARK, intransit, 0, cover
    fi;
    intransit = intransit + count;
    if
    :: cover != 0 -> covered = intransit
    :: else
    fi;
    if
    :: wrong(freed_when_posted) || store -> transferred = intransit
    :: else
    fi;
    cover = 0;
    count = 0
}

inline push_behind() {
    refreshed = false;
    do
    :: produced == intransit -> break
    :: else ->
        look_for_space();
        count = ring - (intransit - known);
        if
        :: count > produced - intransit -> count = produced - intransit
        :: else
        fi;
        if
        :: count > ring - intransit % ring -> count = ring - intransit % ring
        :: else
        fi;
        if
        :: count == 0 && refreshed -> break
        :: count == 0 && !refreshed -> refreshed = true; refresh()
        :: else -> send_run(in_order || wrong(mark_in_the_run))
        fi
    od;
    refreshed = false
}

inline push_what_is_there() {
    if
    :: store == 1 -> show_batch()
    :: store != 1 && straight && produced != intransit -> count = produced - intransit; send_run(true)
    :: store != 1 && !straight -> push_behind()
    :: else
    fi
}

#define in_use (produced - known)
#define own_room                                                                       \
    (store == 1 -> (wrong(stored_over) -> ring : ring - in_use)                        \
                 : (wrong(own_ring_forgotten) -> ring : ring - (produced - transferred)))

/* Sender::make_room for one item; no_room says whether there is none. */
inline make_room() {
    no_room = false;
    changed = false;
    if
    :: straight && produced != intransit && produced % ring == 0 && !wrong(batch_wraps) ->
        push_what_is_there()
    :: else
    fi;
    reap();
    look_for_space();
    if
    :: !push && in_use > ring / 2 && !reading -> refresh()
    :: else
    fi;
    if
    :: own_room < 1 ->
        refresh();
        push_what_is_there();
        settle();
        if
        :: own_room < 1 -> no_room = true; room = 0
        :: else
        fi
    :: else
    fi;
    if
    :: no_room
    :: !no_room && store == 1 ->
        straight = true;
        room = ring - produced % ring;
        if
        :: room > own_room -> room = own_room
        :: else
        fi
    :: !no_room && !store && in_order && (straight || produced == intransit) &&
       (in_use < ring || wrong(peer_ring_forgotten)) ->
        straight = true;
        room = ring - produced % ring;
        if
        :: room > own_room -> room = own_room
        :: else
        fi;
        if
        :: room > ring - in_use && !wrong(peer_ring_forgotten) -> room = ring - in_use
        :: else
        fi
    :: else -> straight = false; room = 1
    fi
}

/* Between two calls that achieved nothing. Polling for ever is no dead end for SPIN; so the producer
   waits, left to chance, for a change it can see, or for any hope of one. What never comes is then
   found, whichever of the two it is. */
inline wait() {
    if
    :: changed
    :: !changed -> nempty(sent) || (push && credit != known && credit != TORN) ||
                   (store && !push && progress != known && !wrong(never_asks)) /* a load sees it */
    :: !changed -> progress != known || transferred != intransit
    fi;
    changed = false
}

proctype Producer() {
    xs to_consumer;
    mtype kind;
    byte cover, word, count;
    bool no_room, refreshed;
    do
    :: produced == items -> break
    :: else ->
        atomic {
            if
            :: room == 0 -> make_room()
            :: else
            fi
        };
        if
        :: no_room -> no_room = false; wait()
        :: else ->
            if
            :: store == 1 -> lay_in_place()
            :: else ->
                atomic {
                    own[produced % ring] = produced + 1;
                    produced++;
                    room--
                }
            fi;
            atomic {
                if
                :: produced != items /* a batch: more is laid first */
                :: push_what_is_there()
                fi
            }
        fi
    od;
    /* flush */
    straight = false;
    do
    :: transferred == produced || wrong(no_flush) -> break
    :: else ->
        atomic {
            changed = false;
            reap();
            look_for_space();
            if
            :: wrong(flush_sends_nothing)
            :: !wrong(flush_sends_nothing) && store == 1 -> show_batch()
            :: else -> push_behind()
            fi;
            settle()
        };
        if
        :: transferred == produced -> changed = false
        :: else -> wait()
        fi
    od;
    goodbye!produced
}

/* ---- the devices */

#define ordered (in_order && !store) /* so are the bytes of a run */

inline write_payload(i) {
    check(slot_is_free, position + i < taken + ring);
    check(sent_before_reuse, own[(position + i) % ring] == position + i + 1);
    payload[(position + i) % ring] = position + i + 1
}

inline write_mark(i) {
    if
    :: zero_first && i == 0 && store /* a copy leaves it out */
    :: else -> mark[(position + i) % ring] = (zero_first && i == 0 -> 0 : position + i + 1)
    fi
}

proctype DeviceOfProducer() {
    xr to_consumer;
    xs executed;
    mtype kind;
    byte position, count, cover, word, left;
    bool zero_first;
end:
    do
    :: atomic {
        to_consumer?kind, position, count, cover ->
        zero_first = kind == RUN && !ordered && !wrong(mark_in_the_run) &&
                     !wrong(copied_in_any_order);
        if
        :: kind == RUN ->
            /* One bit for each word that is to be written: payload 0, mark 0, payload 1, ... */
            left = (1 << (2 * count)) - 1
        :: kind == MARK -> mark[position % ring] = position + 1
        :: kind == READ -> word = progress
        :: else
        fi
       };
       do
       :: left == 0 -> break
       :: atomic { (left & 1) -> write_payload(0); left = left & ~1 }
       :: atomic { (left & 2) && (!ordered || !(left & 1)) -> write_mark(0); left = left & ~2 }
       :: atomic { (left & 4) && (!ordered || !(left & 3)) -> write_payload(1); left = left & ~4 }
       :: atomic { (left & 8) && (!ordered || !(left & 7)) -> write_mark(1); left = left & ~8 }
       :: atomic { (left & 16) && (!ordered || !(left & 15)) -> write_payload(2); left = left & ~16 }
       :: atomic { (left & 32) && (!ordered || !(left & 31)) -> write_mark(2); left = left & ~32 }
       od;
       atomic {
        if
        :: kind == READ && word != progress -> word = TORN
        :: else
        fi;
        if
        :: cover != 0 && store -> copied!1
        :: cover != 0 && !store -> executed!kind, cover, word
        :: else
        fi;
        kind = 0; position = 0; count = 0; cover = 0; word = 0; zero_first = false
       }
    od
}

/* Completions come back in order, at any time. */
proctype Acknowledgements() {
    xr executed;
    mtype kind;
    byte cover, word;
end:
    do
    :: atomic { executed?kind, cover, word -> sent!kind, cover, word; kind = 0; cover = 0; word = 0 }
    od
}

proctype DeviceOfConsumer() {
    byte word;
end:
    do
    :: atomic { to_producer?word -> credit = TORN };
       atomic { credit = word; word = 0 };
       credited!1
    od
}

/* ---- the consumer */

byte consumed, returned, given; /* given: the last credit that was pushed */
bool crediting;                 /* ... and is not known to have arrived */

/* Pushes what was returned, if nothing is on its way. */
inline give() {
    if
    :: push && store && given != returned ->
        given = returned;
        if
        :: wrong(credit_not_stored)
        :: else -> credit = given
        fi
    :: push && !store && given != returned ->
        if
        :: crediting && nempty(credited) -> credited?_; crediting = false
        :: crediting && empty(credited)
        :: !crediting
        fi;
        if
        :: !crediting -> given = returned; crediting = true; to_producer!given
        :: else
        fi
    :: else
    fi
}

inline return_credit() {
    progress = consumed;
    returned = consumed;
    give()
}

#define item_is_there                       \
    (mark[consumed % ring] == consumed + 1 || \
     (wrong(stale_mark) && mark[consumed % ring] != 0))

proctype Consumer() {
    byte total;
    do
    :: item_is_there ->
        if
        :: wrong(freed_before_read) ->
            atomic { consumed++; return_credit() };
            check(item_is_whole, payload[(consumed - 1) % ring] == consumed);
            taken = consumed
        :: else ->
            atomic {
                check(item_is_whole, payload[consumed % ring] == consumed + 1);
                taken++;
                consumed++
            };
            atomic {
                if
                :: consumed - returned >= step -> return_credit()
                :: else
                fi
            }
        fi
    /* idle */
    :: atomic { !item_is_there && consumed != returned -> return_credit() }
    :: atomic {
        !item_is_there && consumed == returned && push && given != returned && nempty(credited) &&
        !wrong(not_offered_again) -> give()
       }
    /* the end was seen; one more look at the marks, and then the positions decide */
    :: atomic {
        nempty(goodbye) && !item_is_there && !wrong(close_at_once) && goodbye?[eval(consumed)] ->
        goodbye?total;
        break
       }
    :: atomic { nempty(goodbye) && wrong(close_at_once) -> goodbye?total; break }
    od;
    check(no_item_is_lost, consumed == items && total == items)
}

init {
    atomic {
        start();
        c_code {
            now.items = setting("MODEL_items", 5);
            now.ring = setting("MODEL_ring", 2);
            now.push = setting("MODEL_push", 1);
            now.in_order = setting("MODEL_in_order", 1);
            now.quarter = setting("MODEL_quarter", 1);
            now.step = setting("MODEL_step", 1);
            now.store = setting("MODEL_store", 0);
        };
        run Producer(); run DeviceOfProducer(); run Acknowledgements();
        run DeviceOfConsumer(); run Consumer()
    }
}
