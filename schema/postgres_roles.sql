-- The roles that everything else rests on. Roles belong to the server, not to a database, so this
-- runs at every installation and may find them there already.
DO $$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['syncd_owner', 'syncd_admin', 'syncd_auditor', 'syncd_member',
                                'syncd_lead'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN %s', wanted,
                       CASE wanted WHEN 'syncd_admin' THEN 'CREATEROLE' ELSE '' END);
      -- Somebody else installs into another database of this server, and has done so by now.
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
      END;
    END IF;
  END LOOP;
  -- Whoever installs acts as the owner and as an administrator; from PostgreSQL 16 on, having
  -- made a role does not include that, but includes the right to grant it; before, the reverse.
  FOREACH wanted IN ARRAY ARRAY['syncd_owner', 'syncd_admin'] LOOP
    IF NOT pg_catalog.pg_has_role(current_user, wanted, 'USAGE') THEN
      EXECUTE format('GRANT %I TO CURRENT_USER %s', wanted,
                     CASE WHEN current_setting('server_version_num')::integer < 160000
                          THEN 'WITH ADMIN OPTION' ELSE '' END);
    END IF;
  END LOOP;
  -- An administrator hands these out; ADMIN is what PostgreSQL 16 asks for that.
  FOREACH wanted IN ARRAY ARRAY['syncd_auditor', 'syncd_member', 'syncd_lead'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m
                   WHERE m.roleid = wanted::regrole AND m.member = 'syncd_admin'::regrole
                     AND m.admin_option) THEN
      EXECUTE format('GRANT %I TO syncd_admin WITH ADMIN OPTION', wanted);
    END IF;
  END LOOP;
  -- A lead may what a member may, a member what an auditor may.
  IF NOT pg_catalog.pg_has_role('syncd_member', 'syncd_auditor', 'USAGE') THEN
    GRANT syncd_auditor TO syncd_member;
  END IF;
  IF NOT pg_catalog.pg_has_role('syncd_lead', 'syncd_member', 'USAGE') THEN
    GRANT syncd_member TO syncd_lead;
  END IF;
END $$;
