-- Erasing events on purpose: what they said leaves the tables, their addresses and the chain stay.

-- Replaces the bodies of events by what an erased event keeps, and appends the event that records it. The leaf takes the
-- place of nonce and body in the chain. `source` keeps the keyed hash of a source key, so that an import on any host knows
-- an erased event again. p_source names this erasure, so that a call whose answer was lost can be repeated.
CREATE FUNCTION erase(
    p_store integer, p_source bytea, p_seqs bigint[], p_bodies bytea[],
    p_session bytea, p_nonce bytea, p_body bytea, OUT o_seq bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    h scroll.head;
    v_key bytea;
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    PERFORM scroll.lock_store(p_store);
    SELECT sha256(s.secret || p_source) INTO v_key FROM scroll.store s WHERE s.store_id = p_store;
    SELECT s.seq INTO o_seq FROM scroll.source s WHERE s.store_id = p_store AND s.key = v_key;
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE scroll.event e SET leaf = sha256(e.nonce || e.body), body = u.body, nonce = NULL, payloads = NULL
    FROM unnest(p_seqs, p_bodies) AS u(seq, body)
    WHERE e.store_id = p_store AND e.seq = u.seq AND e.leaf IS NULL;
    SELECT * INTO h FROM scroll.head WHERE store_id = p_store;
    o_seq := h.last_seq + 1;
    INSERT INTO scroll.source VALUES (p_store, v_key, o_seq);
    INSERT INTO scroll.event (store_id, seq, session_id, agent_id, task_id, nonce, body, chain)
    VALUES (p_store, o_seq, p_session, '', '', p_nonce, p_body,
            sha256(h.chain || int8send(o_seq) || sha256(p_nonce || p_body)));
    UPDATE scroll.head SET last_seq = o_seq, bytes = h.bytes + length(p_body) + 160,
        chain = (SELECT e.chain FROM scroll.event e WHERE e.store_id = p_store AND e.seq = o_seq)
    WHERE store_id = p_store;
    PERFORM pg_notify('scroll', p_store::text);
END $$;
