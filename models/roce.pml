/* A reliable connection over packets that may be lost, doubled and overtaken: src/roce/requester.hpp and
 * src/roce/responder.hpp.
 *
 * Modelled: requests of one packet (SENDs, for which now and then no receive is there), READs of two responses,
 * and atomics, of any kind each; PSNs that wrap (modulo 16; the first is 14); the window; acknowledgements, the
 * one refusal of a gap, pauses of a receiver that is not ready; go-back-N; READs and atomics that are repeated, and the
 * ring from which atomics are answered again; the queue of answers, which no acknowledgement overtakes; a timer that runs
 * out when nothing else goes on, and `early` times at any moment. Left out: what is in a message, errors that end the
 * connection, READs in pieces, counts of retries, fences, the times themselves.
 *
 * Each time that the timer runs out after the last one, something must have gone on, or have been lost on its way.
 * Packets carry their number without the wrap, too, at which the assertions alone look.
 *
 * Settings: items (requests), window, reads (under way, and the responder's ring), missing (receives that are not
 * there), losses, doubles, moves, early.
 */
#include "common.pml"

#define most 4
#define first_psn 14
#define wrap 16
#define half 8

#define SEND 0
#define READ 1
#define ATOMIC 2

#define ACK 0
#define GAP 1
#define NOT_READY 2
#define DATA 3

local byte items, window, reads;
byte missing, losses, doubles, moves, early;

/* What is asked: kinds, and PSNs without the wrap. */
byte kind_of[most], first_of[most], end_of[most], value_of[most];

/* kind, PSN, responses, real number */
chan to_responder = [4] of { byte, byte, byte, byte };
/* kind, PSN, value, real number */
chan to_requester = [4] of { byte, byte, byte, byte };

/* The requester, in numbers without the wrap. */
byte done, unacknowledged, cursor, sent, placed;
bit is_recovering, is_paused;

/* The responder. */
byte expected, executed, atomics, furthest;
bit must_acknowledge, awaits_repetition;
byte refusal; /* ACK: none */
/* Number, responses left, value; and the one that is being sent. */
chan answers = [4] of { byte, byte, byte };
byte answering, answers_left, answering_value;
byte ring_number[most], ring_value[most], ring_next;

byte progress, progress_then, lost, lost_then;
hidden byte it_was_fruitful, is_done_once_in_order, has_its_data, was_done, is_its_value, is_in_window;

/* How far a PSN is after a number: less than half, or it is before it. */
#define after(psn, number) \
    (wrong(psn_as_a_number) -> \
        ((psn) >= (number) % wrap -> (psn) - (number) % wrap : wrap - 1) : \
        ((psn) + wrap - (number) % wrap) % wrap)

#define last_number end_of[items - 1]
#define has_answered (empty(answers) && answers_left == 0)
#define is_quiet (empty(to_responder) && empty(to_requester) && has_answered && !must_acknowledge && refusal == ACK)

/* Of request i: the cursor is at it; the cursor is within it; it is a READ or an atomic under way. */
#define is_at(i) (first_of[i] <= cursor && cursor < end_of[i])
#define is_within(i) (first_of[i] < cursor && cursor < end_of[i])
#define is_read(i) (kind_of[i] != SEND)
#define is_reading(i) (i >= done && is_read(i) && first_of[i] < cursor)
#define asks_data ((is_at(0) && is_read(0)) || (is_at(1) && is_read(1)) || (is_at(2) && is_read(2)) || (is_at(3) && is_read(3)))
#define asks_again (is_within(0) || is_within(1) || is_within(2) || is_within(3))
#define under_way (is_reading(0) + is_reading(1) + is_reading(2) + is_reading(3))
#define may_send (cursor < last_number && cursor - unacknowledged < window && !is_paused && \
                  (!asks_data || asks_again || under_way < reads))

inline say(kind, number, count) {
    if
    :: nfull(to_responder) -> to_responder!kind, (number) % wrap, count, number
    :: full(to_responder) -> lost++
    fi
}
inline answer(kind, number, value) {
    if
    :: nfull(to_requester) -> to_requester!kind, (number) % wrap, value, number
    :: full(to_requester) -> lost++
    fi
}

/* The request that a number belongs to. */
inline find(number, index) {
    index = 0;
    do
    :: number >= end_of[index] -> index++
    :: else -> break
    od
}

inline complete() {
    was_done = executed > done;
    assert(was_done);
    has_its_data = kind_of[done] == SEND || placed == end_of[done] - first_of[done];
    assert(has_its_data);
    placed = 0;
    done++
}

inline progressed() {
    progress++;
    is_recovering = 0;
    if
    :: cursor < unacknowledged && !wrong(cursor_left_back) -> cursor = unacknowledged
    :: else
    fi;
    is_in_window = cursor >= unacknowledged;
    assert(is_in_window)
}

/* Everything before the number was done; stops at data that has not come. */
inline advance(number, moved) {
    moved = 0;
    do
    :: unacknowledged < number && (kind_of[done] == SEND || wrong(data_not_awaited)) ->
        unacknowledged++;
        moved = 1;
        if
        :: unacknowledged == end_of[done] -> complete()
        :: else
        fi
    :: else -> break
    od;
    if
    :: moved -> progressed(); moved = 0
    :: else
    fi
}

inline go_back() { cursor = unacknowledged }

inline lacks_response() {
    if
    :: !is_recovering -> go_back(); is_recovering = 1
    :: else
    fi
}

inline timer(is_early) {
    if
    :: !is_early ->
        it_was_fruitful = progress != progress_then || lost != lost_then;
        assert(it_was_fruitful);
        progress_then = progress;
        lost_then = lost
    :: else
    fi;
    go_back()
}

proctype Requester() {
    byte kind, psn, value, real, number, index;
    bit moved;
    do
    :: atomic { may_send ->
        find(cursor, index);
        if
        :: kind_of[index] == SEND ->
            say(SEND, cursor, 1);
            cursor++
        :: else ->
            say(kind_of[index], cursor, end_of[index] - cursor);
            cursor = end_of[index]
        fi;
        if
        :: sent < cursor -> sent = cursor; progress++
        :: else
        fi;
        index = 0
       }
    :: atomic { unacknowledged < sent && !is_paused && !may_send && is_quiet && !wrong(timer_not_set) -> timer(0) }
    :: atomic { unacknowledged < sent && !is_paused && early > 0 -> early--; timer(1) }
    :: atomic { is_paused -> is_paused = 0 }
    :: atomic { to_requester?kind, psn, value, real ->
        number = after(psn, unacknowledged);
        if
        :: number < half && number < sent - unacknowledged ->
            number = unacknowledged + number;
            if
            :: kind == ACK -> number++
            :: else
            fi;
            advance(number, moved);
            if
            :: unacknowledged < number -> lacks_response()
            :: unacknowledged == number && kind == GAP -> go_back()
            :: unacknowledged == number && kind == NOT_READY -> go_back(); is_paused = 1; progress++
            :: unacknowledged == number && kind == DATA ->
                is_its_value = kind_of[done] == READ || value == value_of[done];
                assert(is_its_value);
                is_its_value = real == unacknowledged;
                assert(is_its_value);
                placed++;
                unacknowledged++;
                if
                :: unacknowledged == end_of[done] -> complete()
                :: else
                fi;
                progressed()
            :: unacknowledged == number && kind == ACK
            fi
        :: else
        fi;
        kind = 0; psn = 0; value = 0; real = 0; number = 0
       }
    :: unacknowledged == last_number -> break
    od;
end:
    do
    :: to_requester?_, _, _, _
    od
}

inline forget() { kind = 0; psn = 0; count = 0; real = 0 }

inline execute() {
    is_done_once_in_order = real == expected;
    assert(is_done_once_in_order);
    if
    :: kind == ATOMIC ->
        ring_number[ring_next] = expected;
        ring_value[ring_next] = atomics;
        ring_next = (ring_next + 1) % (wrong(ring_too_short) -> 1 : reads);
        answers!expected, 1, atomics;
        atomics++
    :: kind == READ -> answers!expected, count, 0
    :: kind == SEND -> must_acknowledge = 1
    fi;
    expected = expected + count;
    executed++;
    progress++;
    awaits_repetition = 0;
    /* What was missing came before its refusal left. */
    if
    :: refusal != ACK && furthest >= expected -> refusal = GAP; awaits_repetition = 1
    :: refusal != ACK && furthest < expected -> refusal = ACK; must_acknowledge = 1
    :: refusal == ACK
    fi
}

/* Answered again; where there is no room, the repetition is lost. */
inline repeat() {
    number = expected - (wrap - after(psn, expected));
    if
    :: kind == SEND -> must_acknowledge = must_acknowledge || !wrong(repetition_unanswered)
    :: kind == READ && len(answers) < 2 -> answers!number, count, 0
    :: kind == ATOMIC && len(answers) < 2 ->
        index = 0;
        do
        :: index < reads && ring_number[index] != number -> index++
        :: else -> break
        od;
        if
        :: index < reads && wrong(atomic_done_again) -> answers!number, 1, atomics; atomics++
        :: index < reads && !wrong(atomic_done_again) -> answers!number, 1, ring_value[index]
        :: else
        fi
    :: kind != SEND && len(answers) >= 2 -> lost++
    fi
}

proctype Responder() {
    byte kind, psn, count, real, number, index;
end:
    do
    :: atomic { to_responder?kind, psn, count, real ->
        number = after(psn, expected);
        if
        :: wrong(done_again) && number == wrap - 1 ->
            is_done_once_in_order = 0;
            assert(is_done_once_in_order)
        :: wrong(gap_passed_over) && number > 0 && number < half ->
            is_done_once_in_order = 0;
            assert(is_done_once_in_order)
        :: else
        fi;
        if
        :: number == 0 && kind == SEND && missing > 0 ->
            if
            :: missing--; refusal = NOT_READY; awaits_repetition = 1; furthest = expected
            :: execute()
            fi
        :: number == 0 && !(kind == SEND && missing > 0) -> execute()
        :: number > 0 && number < half ->
            if
            :: refusal != ACK && expected + number > furthest -> furthest = expected + number
            :: else
            fi;
            if
            :: !awaits_repetition -> awaits_repetition = 1; refusal = GAP; furthest = expected + number
            :: else
            fi
        :: number >= half -> repeat()
        fi;
        forget(); number = 0; index = 0
       }
    :: atomic { answers_left == 0 && nempty(answers) -> answers?answering, answers_left, answering_value }
    :: atomic { answers_left > 0 ->
        answer(DATA, answering, answering_value);
        answers_left--;
        answering = (answers_left > 0 -> answering + 1 : 0);
        answering_value = (answers_left > 0 -> answering_value : 0)
       }
    :: atomic { refusal != ACK && has_answered ->
        answer(refusal, expected, 0);
        refusal = ACK;
        must_acknowledge = 0
       }
    :: atomic { must_acknowledge && refusal == ACK && has_answered ->
        answer(ACK, expected - 1, 0);
        must_acknowledge = 0
       }
    od
}

/* Loses, doubles and delays, as long as it may. */
proctype Network() {
    byte kind, psn, count, real;
end:
    do
    :: atomic { losses > 0 && nempty(to_responder) ->
        to_responder?kind, psn, count, real; losses--; lost++; forget()
       }
    :: atomic { losses > 0 && nempty(to_requester) ->
        to_requester?kind, psn, count, real; losses--; lost++; forget()
       }
    :: atomic { doubles > 0 && nfull(to_responder) && nempty(to_responder) ->
        to_responder?<kind, psn, count, real>; doubles--;
        to_responder!kind, psn, count, real; forget()
       }
    :: atomic { doubles > 0 && nfull(to_requester) && nempty(to_requester) ->
        to_requester?<kind, psn, count, real>; doubles--;
        to_requester!kind, psn, count, real; forget()
       }
    :: atomic { moves > 0 && len(to_responder) > 1 ->
        to_responder?kind, psn, count, real; moves--;
        to_responder!kind, psn, count, real; forget()
       }
    :: atomic { moves > 0 && len(to_requester) > 1 ->
        to_requester?kind, psn, count, real; moves--;
        to_requester!kind, psn, count, real; forget()
       }
    od
}

init {
    byte index, number, value;
    start();
    c_code {
        now.items = setting("MODEL_items", 3);
        now.window = setting("MODEL_window", 4);
        now.reads = setting("MODEL_reads", 2);
        now.missing = setting("MODEL_missing", 1);
        now.losses = setting("MODEL_losses", 1);
        now.doubles = setting("MODEL_doubles", 0);
        now.moves = setting("MODEL_moves", 0);
        now.early = setting("MODEL_early", 0);
    }
    atomic {
        number = first_psn;
        do
        :: index < items ->
            first_of[index] = number;
            if
            :: kind_of[index] = SEND; number++
            :: kind_of[index] = READ; number = number + 2
            :: kind_of[index] = ATOMIC; number++; value_of[index] = value; value++
            fi;
            end_of[index] = number;
            ring_number[index] = 255;
            index++
        :: else -> break
        od;
        unacknowledged = first_psn; cursor = first_psn; sent = first_psn; expected = first_psn;
        progress_then = 255;
        index = 0; number = 0; value = 0;
        run Requester(); run Responder(); run Network()
    }
}
