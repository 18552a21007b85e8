/* Both ends asleep by turns: the producer for space, the consumer for items, over one queue pair in
 * each direction. How Sleeper and Bell of both ends, and the credit of design 2, work together:
 * ring/receiver.hpp (FlagSleeper), ring/sender.hpp (SpaceSleeper), end/wake_up.hpp, ring/detail/space.hpp.
 *
 * Modelled: waits as base::wait_until makes them, credit that finds one in flight, idle() that looks
 * only now and then, events and completions that end a sleep, an announcement that outlives a wait.
 * Left out, because wake_up.pml and ring.pml have it: store buffers, torn words, the producer's
 * own ring, completions of data. Steps between which the order is proved in wake_up.pml are one step
 * here: a flag and the READ behind it, the store of progress and the look at the flag.
 *
 * Settings: items (how many pass), ring (how many it holds), push (1: credit is pushed, 0: the
 * producer READs), polls (1: the producer never sleeps), step (items between credits), store (1:
 * items and credit are stored, and the producer loads; flags, their READs and events are posted).
 */
#include "common.pml"

local byte items, ring, push, polls, step, store;

/* Which end. */
#define P 0
#define C 1

mtype = { DATA, CREDIT, EVENT, FLAG, READ, ASK };
typedef End {
    byte progress, peer_sleeping;             /* its WakeUpPage */
    byte news;                                /* DATA or CREDIT: what the peer writes here */
    byte landing;                             /* of the READ */
    bool read_completed, credit_completed;    /* in its send completion queue */
    bool sends_armed, receives_armed;
    bool notified;                            /* its completion channel is readable */
    byte answered;                            /* Bell */
    byte generation;                          /* Sleeper */
    bool standing, confirmed, pending, done;
};
End ends[2];
chan requests[2] = [6] of { mtype, byte };    /* of this end, on their way to the other */
chan events[2] = [2] of { byte };             /* receive completions of this end: the immediate */
byte given;                                   /* the consumer: its last pushed credit */
bool crediting;                               /* ... and not known to have arrived */
bool asking, asked;                           /* the producer's READ for space: posted, completed */
bool waiting;                                 /* the producer: in a wait that came to its sleeper */
byte answer;                                  /* its landing */

byte produced, known; /* known: consumed, as far as the producer knows */
byte consumed, returned;

#define me ends[side]
#define peer ends[1 - side]


/* Executes the requests of `side`; completions of those that are waited for come later. */
proctype Device(bit side) {
    mtype kind;
    byte value;
end:
    do
    :: atomic {
        requests[side]?kind, value ->
        if
        :: kind == DATA || kind == CREDIT -> peer.news = value
        :: kind == FLAG -> peer.peer_sleeping = value; value = peer.progress
        :: kind == READ -> value = peer.progress
        :: kind == ASK ->
            answer = peer.progress;
            asked = true;
            if
            :: me.sends_armed -> me.sends_armed = false; me.notified = true
            :: else
            fi
        :: kind == EVENT ->
            events[1 - side]!value;
            if
            :: peer.receives_armed -> peer.receives_armed = false; peer.notified = true
            :: else
            fi
        fi;
        if
        :: (kind == FLAG && !wrong(no_read)) || kind == READ || kind == CREDIT -> goto completes
        :: else -> kind = 0; value = 0
        fi
       };
       goto end;
completes:
       atomic {
        if
        :: kind == CREDIT -> me.credit_completed = true
        :: else -> me.landing = value; me.read_completed = true
        fi;
        if
        :: me.sends_armed -> me.sends_armed = false; me.notified = true
        :: else
        fi;
        kind = 0;
        value = 0
       }
    od
}

/* ---- what both ends do */

inline learn(position) {
    if
    :: position > known -> known = position
    :: else
    fi
}

inline reap() {
    if
    :: me.read_completed -> me.read_completed = false; me.done = true
    :: else
    fi;
    if
    :: me.credit_completed -> me.credit_completed = false; crediting = false
    :: else
    fi
}

inline take_events() {
    do
    :: events[side]?immediate ->
        if
        :: immediate == me.generation && !wrong(answer_ignored) ->
            me.standing = false;
            me.confirmed = false
        :: else
        fi
    :: empty(events[side]) -> immediate = 0; break
    od
}

/* Bell::publish up to the look; `wake` is its answer. */
inline publish(position) {
    me.progress = position;
    wake = me.peer_sleeping != me.answered
}

inline ring_bell() {
    if
    :: wake && me.peer_sleeping != me.answered && !(side == C && wrong(space_not_rung)) &&
       !(side == P && wrong(stored_not_rung)) ->
        requests[side]!EVENT, me.peer_sleeping;
        me.answered = me.peer_sleeping
    :: else
    fi;
    wake = false
}

/* A completion is still to come. */
#define awaits ((me.pending && !me.done) || (side == C && crediting) || (side == P && asking && !asked))

/* Sleeper::prepare. */
inline prepare() {
    atomic {
        take_events();
        if
        :: !me.standing && me.pending && me.done ->
            me.pending = false;
            me.done = false;
            me.landing = 0
        :: else
        fi;
        if
        :: !me.standing && !me.pending ->
            me.generation++;
            requests[side]!FLAG, me.generation; /* and the READ behind it */
            me.standing = true;
            me.confirmed = wrong(no_read);
            me.pending = !wrong(no_read);
            me.done = false
        :: else
        fi;
        if
        :: me.standing && !me.confirmed && !me.pending ->
            requests[side]!READ, 0;
            me.pending = true;
            me.done = false
        :: else
        fi
    };
    atomic { reap() };
    atomic {
        arms = awaits;
        me.sends_armed = me.sends_armed || arms;
        me.receives_armed = true
    }
}

/* Sleeper::park up to the sleep: `naps` if it does not come to that. */
inline park() {
    atomic {
        take_events();
        before = me.done + crediting * 2;
        reap();
        if
        :: me.confirmed && before != me.done + crediting * 2 -> naps = true
        :: else ->
            if
            :: !me.standing -> naps = true
            :: me.standing && !me.confirmed && me.pending && me.done ->
                me.pending = false;
                me.done = false;
                if /* is_news */
                :: side == P -> naps = me.landing > known; learn(me.landing)
                :: else -> naps = me.landing != consumed
                fi;
                me.landing = 0;
                if
                :: naps
                :: !naps -> me.confirmed = true
                fi
            :: me.standing && !me.confirmed && !me.pending -> naps = true
            :: else
            fi
        fi;
        if /* posted by the look behind prepare */
        :: awaits && !arms -> naps = true
        :: else
        fi;
        arms = false;
        before = 0
    }
}

/* ---- the producer */

#define has_space (produced - known < ring)

inline look_at_answer() {
    if
    :: asked -> learn(answer); answer = 0; asked = false; asking = false
    :: else
    fi
}

/* Sender::relies_on_bell, without the clock: an end that waits for the bell does not ask. */
#define relies_on_bell (waiting && me.standing && me.confirmed)

/* try_enqueue: looks for space, and sends one item. */
inline try_enqueue() {
    atomic {
        if
        :: push -> learn(me.news)
        :: else -> look_at_answer()
        fi;
        if
        :: !push && !has_space && !asking && !polls && !relies_on_bell ->
            if
            :: store -> learn(ends[C].progress)
            :: else -> asking = true; requests[side]!ASK, 0
            fi
        :: else
        fi;
        sent = has_space;
        if
        :: sent ->
            waiting = false;
            produced++;
            if
            :: store -> peer.news = produced
            :: else
            fi;
            publish(produced);
            if
            :: store
            :: else -> requests[side]!DATA, produced
            fi;
            ring_bell()
        :: else
        fi
    }
}

proctype Producer() {
    bit side = P;
    byte immediate, before;
    bool wake, sent, naps, arms;
    do
    :: produced == items -> break
    :: else ->
        try_enqueue();
        if
        :: sent -> sent = false
        :: !sent && polls ->
            /* Design 1 READs for ever; that ends when there is something to READ. */
            if
            :: push -> me.news > known
            :: else -> ends[C].progress > known; known = ends[C].progress
            fi
        :: else ->
            prepare();
            waiting = true;
            try_enqueue();
            if
            :: sent -> sent = false
            :: else ->
                park();
                if
                :: naps -> naps = false
                :: else -> /* sleeps */
                    atomic { me.notified -> take_events() }
                fi
            fi;
            me.notified = false
        fi
    od
}

/* ---- the consumer */

inline give() {
    if
    :: push && store && given != returned -> given = returned; peer.news = given
    :: push && !store && given != returned ->
        reap();
        if
        :: !crediting -> given = returned; crediting = true; requests[side]!CREDIT, given
        :: else
        fi
    :: else
    fi
}

inline return_credit() {
    publish(consumed);
    returned = consumed;
    give();
    ring_bell()
}

/* Receiver::idle: a look every few microseconds. `must`: the last one is long ago. */
inline idle() {
    if
    :: !must /* not yet */
    :: skip ->
        must = false;
        if
        :: consumed != returned -> return_credit()
        :: else -> give()
        fi
    fi
}

inline try_dequeue() {
    atomic {
        if
        :: me.news > consumed ->
            got = true;
            consumed++;
            if
            :: consumed - returned >= step -> return_credit()
            :: else
            fi
        :: else -> idle()
        fi
    }
}

proctype Consumer() {
    bit side = C;
    byte immediate, before;
    bool wake, got, naps, arms, must = true;
    do
    :: consumed == items -> break
    :: else ->
        try_dequeue();
        if
        :: got -> got = false
        :: else ->
            /* FlagSleeper::prepare */
            atomic {
                if
                :: consumed != returned -> return_credit()
                :: else
                fi
            };
            prepare();
            if
            :: wrong(looks_only_by_chance)
            :: else -> must = true
            fi;
            try_dequeue();
            if
            :: got -> got = false
            :: else ->
                park();
                if
                :: naps ->
                    naps = false;
                    if
                    :: skip
                    :: me.news > consumed
                    fi
                :: else -> /* sleeps */
                    atomic { me.notified -> take_events() }
                fi;
                must = true
            fi;
            me.notified = false
        fi
    od
}

init {
    atomic {
        start();
        c_code {
            now.items = setting("MODEL_items", 3);
            now.ring = setting("MODEL_ring", 1);
            now.push = setting("MODEL_push", 1);
            now.polls = setting("MODEL_polls", 0);
            now.step = setting("MODEL_step", 1);
            now.store = setting("MODEL_store", 0);
        };
        run Device(P); run Device(C); run Producer(); run Consumer()
    }
}
