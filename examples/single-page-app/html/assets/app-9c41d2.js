// A router in a few lines: the address decides what is shown, and no click loads the page again.
const view = document.getElementById("view");

function show(path) {
    view.textContent = path === "/" ? "This is the start." : `You are looking at ${path}.`;
}

document.addEventListener("click", (event) => {
    const link = event.target.closest("nav a");
    if (link) {
        event.preventDefault();
        history.pushState({}, "", link.pathname);
        show(link.pathname);
    }
});

addEventListener("popstate", () => show(location.pathname));
show(location.pathname);
