"""The page that plays a recording, opened from disk: what a class sees, without Python, a server or a network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import workbench as wb
from workbench.views.grid import packets
from workbench.views.grid.page import page_html, write_page
from workbench.views.report import write_report

LESSON = Path(__file__).parents[2] / "assets" / "lesson.html"
VIEWS = ["Reconstruction", "Epochs", "Matching", "Averaging", "Loss"]
SECONDS = 1000


@pytest.fixture(scope="module")
def session():
    """An attack whose matching moves pictures, and its client."""
    client = wb.load_dataset("glyphs").client(0, num_images=6)
    model = wb.models.mlp(widths=(16,))
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=3, batch_size=2))
    attack = wb.AttackSession(model, observation, wb.AttackConfig(steps=30, step_size=0.2), snapshot_every=5)
    for _ in range(30):
        attack.step()
    return attack, client


@pytest.fixture(scope="module")
def recording(session):
    attack, client = session
    made = wb.Recording.of(attack, client)
    moved = made.reconstruction().permutations
    assert (moved != moved[:1]).any(), "matching moves nothing, so these tests check nothing"
    return made


@pytest.fixture(scope="module")
def path(recording, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "lesson.html"
    write_page(file, recording)
    return file


@pytest.fixture
def player(page, path):
    page.goto(path.as_uri())
    expect(page.locator("[data-ready]")).to_be_visible(timeout=20 * SECONDS)
    return page


def choose(page, view):
    page.get_by_role("tab", name=view).click()
    expect(page.get_by_role("tabpanel", name=view)).to_be_visible()


def caption(page):
    return page.locator(".wbg-caption:visible").first


def timeline(page):
    return page.get_by_role("slider", name="Timeline")


def set_slider(slider, value):
    slider.evaluate(
        "(one, value) => { one.value = value; one.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )


def places_of_images(page):
    """Where every reconstruction is, by its number."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('canvas[data-image]')].map("
        "(one) => [one.dataset.image, [one.dataset.place, one.style.transform]]))"
    )


def test_a_picture_keeps_its_place_over_the_whole_run(player, recording):
    expect(caption(player)).to_contain_text("Step 30. Truth above, reconstruction below")
    last = places_of_images(player)
    assert {place for place, _ in last.values()} == {str(place) for place in range(6)}
    order = recording.reconstruction().score.order
    assert [int(last[str(found)][0]) for found in order] == list(range(6)), "a picture is not beside its true image"
    for at, frame in enumerate(recording.frames):
        set_slider(timeline(player), at)
        expect(caption(player)).to_contain_text(f"Step {frame.step}.")
        assert places_of_images(player) == last, f"pictures changed places at step {frame.step}"


def test_the_pixels_on_the_page_are_those_of_the_recording(player, recording):
    set_slider(timeline(player), 2)
    frame = recording.frames[2]
    expect(caption(player)).to_contain_text(f"Step {frame.step}.")
    for image in (0, 5):
        drawn = player.evaluate(
            "(image) => { const one = document.querySelector(`canvas[data-image='${image}']`);"
            " return [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]; }",
            image,
        )
        expected = np.broadcast_to(frame.pixels[image], (28, 28, 3))
        assert np.array_equal(np.reshape(drawn, (28, 28, 4))[..., :3], expected)


def test_sorting_happens_on_request_and_comes_back(player, recording):
    before = places_of_images(player)
    shown = player.evaluate(
        """() => new Promise((resolve) => {
            const all = [...document.querySelectorAll("canvas[data-image]")];
            const left = () => all.map((one) => one.getBoundingClientRect().x);
            const seen = [left()];
            const began = performance.now();
            const look = () => {
                seen.push(left());
                if (performance.now() - began < 1000) requestAnimationFrame(look); else resolve(seen);
            };
            [...document.querySelectorAll("button")].find((one) => one.textContent === "Sort best first").click();
            requestAnimationFrame(look);
        })"""
    )
    at = np.array(shown)
    low, high = np.minimum(at[0], at[-1]), np.maximum(at[0], at[-1])
    is_between = (at > low + 2) & (at < high - 2)
    assert (is_between.any(0) == (high > low + 4)).all(), "a picture jumps to its new place"
    quality = recording.reconstruction().score.psnr
    order = [int(np.flatnonzero(np.argsort(-quality, kind="stable") == place)[0]) for place in range(6)]
    player.wait_for_timeout(50)
    after = places_of_images(player)
    by_place = dict(after.values())
    left = [float(by_place[str(place)].split("(")[1].split("px")[0]) for place in range(6)]
    assert np.argsort(left).tolist() == np.argsort(order).tolist()
    set_slider(timeline(player), 1)
    expect(caption(player)).to_contain_text("Step 5.")
    assert places_of_images(player) == after, "sorted pictures change places with the moment"
    player.get_by_role("button", name="Original order").click()
    player.wait_for_timeout(50)
    assert places_of_images(player) == before


def test_hovering_marks_the_same_picture_everywhere(player, recording):
    choose(player, "Epochs")
    player.locator(".wbg-place:visible").nth(2).hover()
    # Truth, combined and three epochs.
    expect(player.locator("canvas.wbg-marked:visible")).to_have_count(5)
    marked = player.evaluate(
        "() => [...document.querySelectorAll('canvas.wbg-marked')].map((one) => one.dataset.place)"
    )
    assert set(marked) == {marked[0]}
    choose(player, "Matching")
    player.locator(".wbg-place:visible").nth(1).hover()
    expect(player.locator("canvas.wbg-marked:visible")).to_have_count(2)
    expect(player.locator("path.wbg-marked")).to_have_count(1)


def test_arrow_keys_walk_and_enter_enlarges(player, recording):
    first = player.locator(".wbg-place:visible").first
    first.focus()
    player.keyboard.press("ArrowRight")
    quality = recording.reconstruction().score.psnr
    focused = player.locator(".wbg-place:focus")
    marked = player.locator("canvas.wbg-marked:visible")
    expect(marked).to_have_count(2)
    assert marked.evaluate_all("(all) => all.map((one) => one.dataset.place)") == ["1", "1"]
    assert f"Image 2, class {recording.truth[0].class_names[recording.truth[0].labels[1]]}" in focused.get_attribute(
        "aria-label"
    )
    assert f"PSNR {quality[1]:.1f} dB" in focused.get_attribute("aria-label")
    player.keyboard.press("Enter")
    large = player.locator(".wbg-enlarged:visible")
    expect(large).to_contain_text(f"PSNR {quality[1]:.1f} dB")
    expect(large).to_contain_text("span residual")
    expect(large.locator("figcaption")).to_contain_text(["truth", "combined", "error", "epoch 1", "epoch 2", "epoch 3"])
    player.keyboard.press("Escape")
    expect(large).to_have_count(0)
    player.keyboard.press("End")
    assert "Image 6" in player.locator(".wbg-place:focus").get_attribute("aria-label")


def test_match_slides_pictures_into_their_columns_within_a_second_and_back(player, recording):
    choose(player, "Matching")
    last = recording.reconstruction().permutations
    moved = int((last[1] != last[0]).sum())
    expect(caption(player)).to_contain_text(f"Matching moves {moved} of 6 images")
    sheet = player.locator(".wbg-sheet[data-progress]")
    numbers = "(all) => all.map((one) => one.getAttribute('d').match(/-?[0-9.]+/g).map(Number))"

    def straight():
        lines = player.locator(".wbg-assignment").evaluate_all(numbers)
        return [abs(line[0] - line[-2]) < 0.01 for line in lines]

    assert straight().count(False) == moved
    player.get_by_role("button", name="Match", exact=True).click()
    player.wait_for_timeout(1000)
    expect(sheet).to_have_attribute("data-progress", "1.00", timeout=2 * SECONDS)
    assert all(straight())
    player.get_by_role("button", name="Back to the order of optimisation").click()
    expect(sheet).to_have_attribute("data-progress", "0.00", timeout=5 * SECONDS)
    assert straight().count(False) == moved
    player.get_by_text("Details: the likeness of every pair").click()
    expect(player.locator(".wbg-heat circle")).to_have_count(6)
    expect(player.locator(".wbg-axes canvas")).to_have_count(12)


def test_the_averaging_slider_combines_the_first_epochs(player, recording):
    choose(player, "Averaging")
    frame = recording.reconstruction()
    truth = recording.truth[0].images
    for count in (3, 1):
        set_slider(player.get_by_role("slider", name="Number of epochs combined"), count)
        expect(caption(player)).to_contain_text(f"{count} of 3 combined")
        matched = np.stack([frame.epochs[e][frame.permutations[e]] for e in range(count)])
        said = caption(player).inner_text()
        for how, combined in (("mean", matched.mean(0)), ("median", np.median(matched, axis=0))):
            error = ((truth - combined[frame.score.order]) ** 2).mean((1, 2, 3))
            expected = -10 * np.log10(error).mean()
            value = float(said.split(f"{count} of 3 combined:")[1].split(f"{how} ")[1].split(" dB")[0])
            assert abs(value - expected) < 0.15, f"{how} of {count} epochs: {value} dB, not {expected}"
    levels = player.locator(".wbg-chart:visible").text_content()
    for name in ("recovered above 20.0", "mean image", "blank image", "noise at the start"):
        assert name in levels


def test_the_loss_follows_the_timeline_and_names_what_the_attacker_cannot_see(player, recording):
    choose(player, "Loss")
    expect(player.locator(".wbg-formula")).to_contain_text("Smoothness (tv)")
    set_slider(timeline(player), 1)
    expect(caption(player)).to_contain_text("The cursor is at step 5.")
    expect(player.locator(".wbg-formula")).to_contain_text(f"loss {float(f'{recording.history.loss[5]:.3g}'):g}")
    expect(player.locator(".wbg-chart:visible").nth(1)).to_contain_text("which the attacker cannot see")


def test_the_line_of_an_image_in_the_loss_marks_it_and_is_marked(player):
    player.locator(".wbg-place:visible").nth(2).click()
    place = player.locator("canvas.wbg-marked:visible").first.get_attribute("data-place")
    choose(player, "Loss")
    marked = player.locator("path[data-place].wbg-marked")
    expect(marked).to_have_count(1)
    expect(marked).to_have_attribute("data-place", place)
    other = str((int(place) + 1) % 6)
    # A thin line is nowhere near the middle of its box, where a real pointer would go.
    player.locator(f"path[data-place='{other}']").dispatch_event("pointerover")
    expect(marked).to_have_attribute("data-place", other)
    player.get_by_role("tab", name="Reconstruction").dispatch_event("click")  # the pointer stays on the line
    expect(player.locator(f"canvas[data-place='{other}'].wbg-marked:visible")).to_have_count(2)


def test_playing_ends_at_the_last_moment(player):
    player.get_by_role("button", name="Play").click()
    expect(player.locator(".wbg-step")).to_contain_text("of 30")
    expect(player.locator(".wbg-step")).to_have_text("step 30, the end", timeout=10 * SECONDS)
    expect(player.get_by_role("button", name="Play")).to_be_enabled()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_page_and_axe_finds_no_serious_fault(page, path, theme):
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(path.as_uri())
    expect(page.locator("[data-ready]")).to_be_visible(timeout=20 * SECONDS)
    for view in VIEWS:
        choose(page, view)
        for width in (960, 1280, 1440, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate(
                """(width) => new Promise((resolve) => {
                    const began = performance.now();
                    const look = () => {
                        const wide = document.documentElement.scrollWidth;
                        if (wide <= width || performance.now() - began > 5000) resolve(wide);
                        else requestAnimationFrame(look);
                    };
                    requestAnimationFrame(() => requestAnimationFrame(look));
                })""",
                width,
            )
            assert wide <= width, f"{view} at {width}: the page is {wide} pixels wide"
        assert serious(page) == [], view


def serious(page):
    found = Axe().run(page).response["violations"]
    return [
        (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary", "")[:300])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_plays_too_and_axe_finds_no_serious_fault(page, session, tmp_path, theme):
    page.emulate_media(color_scheme=theme)
    attack, client = session
    write_report(tmp_path / "report.html", attack, client)
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.locator("[data-ready]")).to_be_visible(timeout=20 * SECONDS)
    expect(caption(page)).to_contain_text("Step 30.")
    assert serious(page) == []


def test_no_text_of_a_recording_becomes_markup(page, recording, tmp_path):
    nasty = "</script><img src=x onerror=\"document.title='gone'\"><b>&amp;"
    client = recording.truth[0]
    names = tuple(nasty for _ in client.class_names)
    truth = (replace(client, class_names=names, name=nasty),)
    view = {**recording.view, "received": {nasty: nasty}}
    write_page(tmp_path / "nasty.html", replace(recording, truth=truth, view=view, device_name=nasty), title=nasty)
    page.goto((tmp_path / "nasty.html").as_uri())
    expect(page.locator("[data-ready]")).to_be_visible(timeout=20 * SECONDS)
    page.locator(".wbg-place").first.click()
    expect(page.locator(".wbg-enlarged")).to_contain_text(nasty)
    assert page.title() == nasty
    assert page.locator("img").count() == 0


def test_the_lesson_in_the_assets_plays_and_is_small(page):
    assert LESSON.stat().st_size <= 3_000_000
    assert packets.SCRIPT.read_text() in LESSON.read_text(), "an old script: run python tools/lesson.py again"
    page.goto(LESSON.as_uri())
    expect(page.locator("[data-ready]")).to_be_visible(timeout=60 * SECONDS)
    expect(caption(page)).to_contain_text(f"Step {wb.AttackConfig.preset('lesson').steps}.")
    # Every moment has the images of every epoch: from the first noise on there is something to match.
    choose(page, "Matching")
    set_slider(timeline(page), 0)
    expect(caption(page)).to_contain_text("Step 0. Epoch 1 above, epoch 2 below")
    set_slider(timeline(page), 20)
    expect(caption(page)).not_to_contain_text("the latest before")


def test_the_page_of_notebook_06_is_small():
    size = len(page_html(wb.replay(LESSON.with_name("end_to_end_10x5x50.recording"))).encode())
    assert size <= 3_000_000, f"{size} bytes"


def test_an_image_above_the_threshold_that_is_nearly_blank_is_said_to_be_so(page):
    kinds = run_script(
        page,
        "const player = { source: { threshold: 20, blank: [19, 15, 10] } };"
        " return [[0, 20.4], [1, 20.4], [2, 19.8], [0, 22.1]].map(([place, value]) => recovery(player, place, value));",
    )
    assert kinds == ["weak", "recovered", "", "recovered"]


def run_script(page, code):
    """What the code returns where the script's functions and classes are known."""
    page.goto("about:blank")
    source = packets.SCRIPT.read_text().replace("export default", "const unused =").replace("export ", "")
    return page.evaluate(f"() => {{ {source}; {code} }}")


def test_frames_are_thinned_evenly_within_the_limit(page):
    kept, size = run_script(
        page,
        "const store = new FrameStore(100 * 2000);"
        " for (let step = 0; step < 1000; step += 1) store.put({ step, pixels: new Uint8Array(1000), epochs: null });"
        " return [store.steps, store.bytes];",
    )
    assert size <= 200_000
    assert (kept[0], kept[-1], len(kept)) == (0, 999, 100)
    assert np.diff(kept).max() <= 32, f"not even: {kept}"


def test_during_a_run_reconstructions_stay_and_the_truth_moves_only_for_a_much_better_pairing(page):
    # Two true images, black and white. The reconstructions are grey, and then clearly white and black. Whether the run
    # is paused, or makes single steps, makes no difference.
    seen = run_script(
        page,
        """
        const player = new Player();
        player.begin({ numImages: 2, shape: [1, 1, 1], threshold: 20, totalSteps: 4 }, Uint8Array.of(0, 255));
        const seen = [];
        const look = () => seen.push([[...player.places], player.places.map((place) => player.pairs[place])]);
        const put = (step, order, pixels) => {
          const psnrs = order.map((found, place) => psnr(Uint8Array.of(0, 255), place, pixels, found, 1));
          player.put({ step, sets: 1, order, psnr: psnrs, pixels, epochs: null });
          look();
        };
        put(0, [0, 1], Uint8Array.of(127, 128));
        put(1, [1, 0], Uint8Array.of(129, 127));
        put(2, [1, 0], Uint8Array.of(200, 50));
        put(3, [0, 1], Uint8Array.of(127, 129));
        player.pair();
        look();
        put(4, [0, 1], Uint8Array.of(127, 129));
        put(5, [1, 0], Uint8Array.of(129, 127));
        return seen;
        """,
    )
    truths, found = zip(*seen, strict=True)
    assert list(truths) == [[0, 1], [0, 1], [1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]
    assert list(found) == [[0, 1]] * 7, "a reconstruction changed its place"


def test_at_the_limit_a_frame_that_was_asked_for_stays(page):
    steps = run_script(
        page,
        """
        const store = new FrameStore(4 * 2000);
        const frame = (step) => ({ step, pixels: new Uint8Array(1000), epochs: null });
        for (const step of [0, 10, 20, 30]) store.put(frame(step));
        store.put(frame(11));
        const asked = [...store.steps];
        store.put(frame(12), 11);
        return [asked, [...store.steps]];
        """,
    )
    assert steps == [[0, 11, 20, 30], [0, 11, 12, 30]]


def test_the_right_end_of_the_timeline_follows_also_when_a_newer_moment_is_not_drawn_yet(page):
    following = run_script(
        page,
        """
        const root = document.body.appendChild(document.createElement("div"));
        const player = new Player();
        const view = new TimelineView(player, root);
        player.begin({ key: "a", numImages: 1, shape: [1, 1, 1], threshold: 20 }, null);
        const pixels = Uint8Array.of(0);
        const put = (step) => player.put({ step, sets: 1, order: null, psnr: null, pixels, epochs: null });
        [0, 1, 2].forEach(put);
        view.update();
        const move = (value) => {
          view.slider.value = value;
          view.slider.dispatchEvent(new Event("input"));
          return player.isFollowing;
        };
        const earlier = move(0);
        view.update();
        put(3);
        return [earlier, move(2)];
        """,
    )
    assert following == [False, True]


def test_combining_and_crossing_are_computed_right(page):
    result = run_script(
        page,
        """
        const frame = { permutations: [[0, 1], [1, 0], [0, 1]], epochs: Uint8Array.of(10, 200, 220, 30, 80, 255) };
        return [
          [...combineEpochs(frame, 2, 1, 3, "mean")], [...combineEpochs(frame, 2, 1, 3, "median")],
          [...combineEpochs(frame, 2, 1, 2, "median")], [...combineEpochs(frame, 2, 1, 1, "mean")],
          crossing([0, 1, 2], [1, 0, 2]), balanced(16, 14), inverse([2, 0, 1]), sorted([1, 3, 2, 3]),
        ];
        """,
    )
    assert result == [[40, 225], [30, 220], [20, 210], [10, 200], [True, True, False], 8, [1, 2, 0], [1, 3, 2, 0]]


def test_pictures_that_are_alike_stand_beside_each_other(page):
    found = run_script(page, "return pairAlike(Uint8Array.of(0, 100, 250), Uint8Array.of(240, 90, 95), 3, 1);")
    assert found == [1, 2, 0], "95 is the most like 100, then 240 like 250, and 90 is left for 0"


COMPARED = """
    const source = (key, numImages = 2) => ({ key, numImages, shape: [1, 1, 1], threshold: 20, totalSteps: 30 });
    const truth = Uint8Array.of(0, 255);
    const rows = [new Player(), new Player()];
    const comparison = new Comparison(rows);
    const put = (row, step, order, pixels) => {
      const psnrs = order.map((found, place) => psnr(truth, place, Uint8Array.from(pixels), found, 1));
      row.put({ step, sets: 1, order, psnr: psnrs, pixels: Uint8Array.from(pixels), epochs: null });
    };
"""


def test_two_attacks_have_one_timeline_and_one_place_for_each_image(page):
    seen = run_script(
        page,
        COMPARED
        + """
        rows[0].begin(source("a"), truth);
        const before = comparison.source;
        rows[1].begin(source("b"), truth);
        for (const step of [0, 10, 20]) put(rows[0], step, [0, 1], [step, 200]);
        for (const step of [0, 5, 10]) put(rows[1], step, [1, 0], [200, step]);
        const shown = () => rows.map((row) => row.frame().step);
        const all = [before, comparison.steps, comparison.newest, shown()];
        comparison.look(5);
        all.push(shown());
        put(rows[1], 30, [1, 0], [250, 5]);
        all.push(shown());
        comparison.look(20);
        all.push(shown());
        rows[1].follow();
        all.push(shown(), comparison.isFollowing, rows.map((row) => row.pairs));
        rows[1].enlarge(1);
        all.push([comparison.enlarged, rows.map((row) => row.enlarged)]);
        rows[0].begin(source("c", 3), null);
        all.push(comparison.source);
        return all;
        """,
    )
    before, steps, newest, at_the_end, at_5, later, at_20, followed, is_following, pairs, enlarged, after = seen
    assert before is None, "shown before both are there"
    assert (steps, newest) == ([0, 5, 10, 20], 20)
    assert at_the_end == [20, 10], "each shows its newest"
    assert at_5 == later == [0, 5], "each shows the latest moment that it has kept until then"
    assert at_20 == [20, 10]
    assert (followed, is_following) == ([20, 30], True)
    assert pairs == [[0, 1], [1, 0]], "a place belongs to one true image in both"
    assert enlarged == [1, [1, 1]]
    assert after is None, "attacks on different images are shown together"


def test_without_the_truth_the_first_attack_decides_which_picture_stands_where(page):
    pairs = run_script(
        page,
        COMPARED
        + """
        const seen = [];
        rows.forEach((row, index) => row.begin(source(`${index}`), null));
        const add = (row, step, pixels) => {
          row.put({ step, sets: 1, order: null, psnr: null, pixels: Uint8Array.from(pixels), epochs: null });
        };
        add(rows[0], 0, [10, 200]);
        add(rows[1], 0, [190, 20]);
        seen.push(rows.map((row) => row.pairs));
        add(rows[1], 1, [20, 190]);
        seen.push(rows.map((row) => row.pairs));
        // Noise: the other pairing is hardly better, until the end of both.
        add(rows[1], 2, [105, 104]);
        seen.push(rows.map((row) => row.pairs));
        add(rows[0], 30, [10, 200]);
        add(rows[1], 30, [105, 104]);
        seen.push(rows.map((row) => row.pairs));
        return seen;
        """,
    )
    assert pairs == [[[0, 1], [1, 0]], [[0, 1], [0, 1]], [[0, 1], [0, 1]], [[0, 1], [1, 0]]]


def test_of_two_attacks_reconstructions_change_columns_only_for_a_much_better_pairing(page):
    columns = run_script(
        page,
        COMPARED
        + """
        rows.forEach((row, index) => row.begin(source(`${index}`), truth));
        const seen = [];
        const look = () => seen.push([comparison.places.join(""), ...rows.map((row) => row.pairs.join(""))].join(" "));
        for (const row of rows) put(row, 0, [0, 1], [120, 130]);
        look();
        put(rows[0], 1, [1, 0], [132, 123]);  // 0.6 dB better
        look();
        put(rows[1], 1, [1, 0], [200, 50]);
        look();
        put(rows[0], 30, [1, 0], [132, 123]);
        look();
        return seen;
        """,
    )
    assert columns == ["01 01 01", "01 01 01", "01 01 10", "01 10 10"]


def test_the_step_that_each_of_two_attacks_shows_is_reported_also_where_the_attack_arrives_later(page):
    reported = run_script(
        page,
        COMPARED
        + """
        const reported = [];
        rows.forEach((row, index) => {
          row.host.look = (step) => reported.push([index, step]);
          row.begin(source(`${index}`), truth);
        });
        for (const step of [0, 10, 20]) put(rows[0], step, [0, 1], [step, 200]);
        for (const step of [0, 5]) put(rows[1], step, [0, 1], [step, 200]);
        comparison.look(10);
        const settled = () => new Promise((resolve) => setTimeout(resolve, SETTLED_MILLISECONDS + 50));
        return settled().then(() => {
          put(rows[1], 10, [0, 1], [9, 200]);
          put(rows[1], 12, [0, 1], [9, 200]);
          return settled();
        }).then(() => reported);
        """,
    )
    assert reported == [[0, 10], [1, 5], [0, 10], [1, 10]]


def test_best_first_is_by_the_mean_of_both_attacks(page):
    places = run_script(
        page,
        COMPARED
        + """
        rows.forEach((row, index) => row.begin(source(`${index}`), truth));
        put(rows[0], 0, [0, 1], [60, 200]);
        put(rows[1], 0, [0, 1], [1, 200]);
        comparison.sortBy("best first");
        const both = [...comparison.places];
        put(rows[0], 1, [0, 1], [100, 254]);
        comparison.sortBy("best first");
        return [both, comparison.places];
        """,
    )
    assert places == [[0, 1], [1, 0]], "by the first attack alone, the first image is the worse one at first too"


def test_the_curve_of_the_quality_is_that_of_the_images_that_are_shown(page):
    scored = run_script(
        page,
        """
        const truth = Uint8Array.of(0, 255);
        const player = new Player();
        player.begin({ numImages: 2, shape: [1, 1, 1], threshold: 20, totalSteps: 2 }, truth);
        const put = (step, order, pixels, psnr) => player.put({ step, sets: 1, order, psnr, pixels, epochs: null });
        put(0, [1, 0], Uint8Array.of(255, 255), [1, 100]);
        put(2, [0, 1], Uint8Array.of(0, 255), [100, 100]);
        const whole = player.scored;
        put(1, [1, 0], null, [2, 3]);
        return [whole, player.scored];
        """,
    )
    whole, lacking = scored
    assert whole == {"isShown": True, "points": [{"step": 0, "values": [0, 100]}, {"step": 2, "values": [100, 100]}]}
    # Values of two kinds would make a curve that jumps.
    assert not lacking["isShown"]
    assert [point["values"] for point in lacking["points"]] == [[1, 100], [2, 3], [100, 100]]


def test_a_value_above_the_axis_is_marked_and_few_images_are_twice_as_large_when_presented(page):
    text, *scales = run_script(
        page,
        """
        const textOf = (values) => chart({
          title: "", x: "", y: "", xRange: [0, 1], yRange: AXIS, width: 400,
          lines: [{ colour: 1, points: values.map((one, at) => [at, one]) }],
        }).textContent;
        const root = document.body.appendChild(document.createElement("div"));
        const scale = () => fitView(root, 2, (one) => [28 * one, 28 * one]).scale;
        const usual = scale();
        root.className = "wb-present";
        return [[textOf([50, 59]), textOf([50, 72.3])], usual, scale()];
        """,
    )
    assert "▲" not in text[0]
    assert "▲ up to 72.3" in text[1]
    assert scales == [8, 16]


def test_the_marks_of_a_logarithmic_axis_lie_inside_also_within_one_decade(page):
    marks = run_script(
        page, "return [[0.02, 3000], [0.5, 9.9], [31, 48], [2.1, 4.2]].map((ends) => logTicks(...ends));"
    )
    assert marks == [[0.1, 1, 10, 100, 1000], [0.5, 1, 2, 5], [35, 40, 45], [2.5, 3, 3.5, 4]]
