// swift-tools-version:5.9
// The runner as a command for a Mac: `swift build -c release`. The app for phones is EdgekitRunner.xcodeproj; both share Sources.

import PackageDescription

let package = Package(
    name: "edgekit-coreml",
    platforms: [.macOS(.v13)],
    targets: [.executableTarget(name: "edgekit-coreml", path: "Sources", swiftSettings: [.unsafeFlags(["-parse-as-library"])])]
)
